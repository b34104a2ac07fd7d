//! The URLs that name stores.

use std::{collections::BTreeMap, fmt, time::Duration};

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Operation};

/// A store's URL in parts: `scheme://user:password@host:port,host:port/path?option=value`.
///
/// Unlike general URLs it may name several hosts. User, password, path and options are
/// percent-decoded. `Debug` and `Display` show the scheme, hosts and path, and no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<String>,
    path: String,
    options: BTreeMap<String, String>,
}

impl StoreUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], with a message that does not repeat the URL, since it may hold a
    /// password.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| invalid("a store URL starts with a scheme, as in `file:/var/lock/app`"))?;
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+') {
            return Err(invalid("the URL's scheme holds a character that no scheme has"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash)),
            None => ("", rest),
        };
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or((c, ""))) {
            Some((user, password)) => (non_empty(decoded(user)?), non_empty(decoded(password)?)),
            None => (None, None),
        };
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts: hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect(),
            path: decoded(path)?,
            options: options(query)?,
        })
    }

    /// The scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user's name.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password. Keep it out of every message.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// `host` or `host:port`, as written, in the order given.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The path, with its leading slash if it has one.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes an option out, so that [`finish`](StoreUrl::finish) can tell what nobody knew.
    pub fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    /// Takes a time-span option such as `2s` or `150ms` out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when its value is not a time span.
    pub fn take_span(&mut self, option: &str) -> Result<Option<Duration>, Error> {
        self.take(option)
            .map(|value| {
                parse_span(&value).ok_or_else(|| invalid(format!("`{option}` is a time span such as 2s or 150ms")))
            })
            .transpose()
    }

    /// Takes a `yes`/`no` option out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when its value is something else.
    pub fn take_switch(&mut self, option: &str) -> Result<Option<bool>, Error> {
        match self.take(option).as_deref() {
            None => Ok(None),
            Some("yes" | "true" | "1" | "") => Ok(Some(true)),
            Some("no" | "false" | "0") => Ok(Some(false)),
            Some(_) => Err(invalid(format!("`{option}` is yes or no"))),
        }
    }

    /// Refuses what is left: options that the store does not know. `known` is named in the message.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when an option is left.
    pub fn finish(self, known: &str) -> Result<(), Error> {
        match self.options.into_keys().next() {
            Some(option) => {
                let said = format!("the store `{}:` has no option `{option}`", self.scheme);
                Err(invalid(said).advise(format!("it knows: {known}")))
            }
            None => Ok(()),
        }
    }
}

/// Reads a time span: a number with an optional fraction and one of `ms`, `s`, `m`, `h`, `d`;
/// several may follow each other, as in `1m30s`. `0` needs no unit.
pub fn parse_span(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
    }
    (!text.is_empty()).then_some(total)
}

fn options(query: &str) -> Result<BTreeMap<String, String>, Error> {
    let mut options = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decoded(key)?;
        if options.insert(key.clone(), decoded(value)?).is_some() {
            return Err(invalid(format!("the URL's option `{key}` is given twice")));
        }
    }
    Ok(options)
}

fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| invalid("the URL is not UTF-8 once it is percent-decoded"))
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, Operation::Parse, message).not_applied()
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() {
            write!(f, "//{}", self.hosts.join(","))?;
        }
        f.write_str(&self.path)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart() {
        let mut url = StoreUrl::parse("redis://bob:p%40ss@h1:6379,[::1]:7000/3?timeout=150ms&tls=no").unwrap();
        assert_eq!((url.scheme(), url.user(), url.password()), ("redis", Some("bob"), Some("p@ss")));
        assert_eq!((url.hosts(), url.path()), (&["h1:6379".to_owned(), "[::1]:7000".to_owned()][..], "/3"));
        assert_eq!(url.take_span("timeout").unwrap(), Some(Duration::from_millis(150)));
        assert_eq!(url.take_switch("tls").unwrap(), Some(false));
        url.finish("timeout, tls").unwrap();
        assert_eq!(StoreUrl::parse("file:/var/lock").unwrap().path(), "/var/lock");
        assert_eq!(StoreUrl::parse("file:///var/a%20b").unwrap().path(), "/var/a b");
    }

    #[test]
    fn no_secret_leaves_a_url() {
        let url = StoreUrl::parse("redis://bob:hunter2@h/0?key_password=hunter2").unwrap();
        assert!(!format!("{url} {url:?}").contains("hunter2"));
        for bad in ["hunter2", "re dis://x:hunter2@h", "redis://h?a=hunter2&a=hunter2", "redis://:%ffhunter2@h"] {
            assert!(!StoreUrl::parse(bad).unwrap_err().to_string().contains("hunter2"));
        }
        assert!(StoreUrl::parse("redis://h?nope=1").unwrap().finish("timeout").is_err());
    }

    #[test]
    fn time_spans_are_read_with_their_units() {
        for (text, millis) in [("0", 0), ("150ms", 150), ("1.5s", 1500), ("1m30s", 90_000), ("2h", 7_200_000)] {
            assert_eq!(parse_span(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1.2.3s", "1x", "1e9s", "999999999999999999999d"] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
    }
}
