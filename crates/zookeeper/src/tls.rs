//! TLS: where certificates come from and which cryptography is used.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use fencepost_core::{
    error::Error,
    url::settings::{invalid, read},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsConnector;

/// The files of a TLS connection, in PEM. Without `ca` the certificates that the system trusts are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities to trust.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, where the server demands one.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn connector(&self) -> Result<TlsConnector, Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for authority in certificates("ca", ca)? {
                    roots.add(authority).map_err(|source| unusable("ca", ca).caused_by(source))?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| invalid("TLS cannot be set up").caused_by(source))?
            .with_root_certificates(roots);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates("cert", cert)?;
                let secret = PrivateKeyDer::from_pem_slice(&read("key", key)?).map_err(|_| unusable("key", key))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|source| unusable("cert", cert).caused_by(source))?
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(option, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| unusable(option, path))
}

fn unusable(option: &str, path: &Path) -> Error {
    invalid(format!("the file {} of the option `{option}` holds nothing of the kind in PEM", path.display()))
}
