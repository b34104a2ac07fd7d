//! The options of a `file:` URL.

use std::path::PathBuf;

use fencepost_core::{
    error::{Error, ErrorKind, Operation},
    url::StoreUrl,
};

use crate::STORE;

/// How a directory is opened. The URL `file:/path` is the same in text.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    pub(crate) path: PathBuf,
    pub(crate) network: bool,
}

impl DirectoryConfig {
    /// The directory at `path`, which is made when it is missing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), network: false }
    }

    /// Accepts a network file system. Exclusion and fences hold only between processes of one host then, and only
    /// while nothing but this host writes there.
    pub fn on_network(mut self, accept: bool) -> Self {
        self.network = accept;
        self
    }

    /// Reads `file:/path` and `file:///path`, with the option `network=yes`.
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self, Error> {
        let refuse = |said: String, advice: String| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Open, said);
            Err(error.not_applied().in_store(STORE).advise(advice))
        };
        if url.user().is_some() || url.hosts().iter().any(|host| host != "localhost") {
            let said = format!("{url} names a host, and a directory has none");
            return refuse(said, format!("write file:{} with one slash, or with three", url.path()));
        }
        let config = Self::new(url.path()).on_network(url.take_switch("network")?.unwrap_or(false));
        if !config.path.is_absolute() {
            let said = format!("{url} is not an absolute path, and would mean another directory in each process");
            return refuse(said, "write the whole path, as in file:/var/lib/app/locks".to_owned());
        }
        url.finish("network")?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(url: &str) -> Result<DirectoryConfig, Error> {
        DirectoryConfig::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn c4_bad_urls_are_refused_with_a_hint() {
        for bad in ["file:locks", "file:", "file://host/x", "file://locks", "file:/x?mode=7", "file:/x?network=2"] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
        }
        for good in ["file:/x", "file:///x", "file://localhost/x", "file:/x?network=yes"] {
            assert_eq!(read(good).unwrap().path, Path::new("/x"), "{good}");
        }
    }
}
