//! What several stores read from their URLs: limits, logins, and files that options name.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::StoreUrl;
use crate::error::{Error, ErrorKind, Operation};

/// A URL that a store does not take: [`ErrorKind::InvalidInput`] while opening, with nothing applied.
pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, Operation::Open, message).not_applied()
}

/// Takes the limit of a time out, which is `default` where none is given and never zero.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for zero, or what is no time span.
pub fn limit(url: &mut StoreUrl, option: &str, default: Duration) -> Result<Duration, Error> {
    match url.take_span(option)? {
        Some(Duration::ZERO) => Err(invalid(format!("`{option}` must be longer than zero"))),
        limit => Ok(limit.unwrap_or(default)),
    }
}

/// What can be given in two places of a URL, and must not be in both.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] when it is in both.
pub fn exactly_one(what: &str, a: Option<String>, b: Option<String>) -> Result<Option<String>, Error> {
    match (a, b) {
        (Some(_), Some(_)) => Err(invalid(format!("the URL gives the {what} twice"))),
        (a, b) => Ok(a.or(b)),
    }
}

/// Reads a file that an option names.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] when it cannot be read.
pub fn read(option: &str, path: &Path) -> Result<Vec<u8>, Error> {
    let said = || format!("the file {} of the option `{option}` cannot be read", path.display());
    std::fs::read(path).map_err(|source| invalid(said()).caused_by(source))
}

/// Reads a password from the file that an option names, line breaks at its end left aside.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] when it cannot be read, or holds none. Never with what it holds.
pub fn password_from(path: String) -> Result<String, Error> {
    let text = String::from_utf8(read("password_file", Path::new(&path))?);
    let text = text.map_err(|_| invalid("the password file is not UTF-8"))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(invalid("the password file is empty")),
        password => Ok(password.to_owned()),
    }
}

/// Takes the files of the client's own certificate and its key out: `cert` and `key`.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for one without the other.
pub fn client_certificate(url: &mut StoreUrl) -> Result<Option<(PathBuf, PathBuf)>, Error> {
    match (url.take("cert"), url.take("key")) {
        (Some(cert), Some(key)) => Ok(Some((cert.into(), key.into()))),
        (None, None) => Ok(None),
        _ => Err(invalid("`cert` and `key` belong together")),
    }
}
