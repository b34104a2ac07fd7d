//! TLS: where certificates come from and which cryptography is used.

use std::{
    fmt,
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
use tokio_postgres_rustls::MakeRustlsConnect;

/// The files of a TLS connection, in PEM. Without `ca` the certificates that the system trusts are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities to trust.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, where the server demands one.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// What makes TLS connections.
#[derive(Clone)]
pub(crate) struct Connector(pub(crate) MakeRustlsConnect);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Tls {
    /// Reads the files.
    pub(crate) fn connector(&self) -> Result<Connector, Error> {
        // Named, not the process's default: a program may have built in two providers, and then there is none.
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| invalid("TLS cannot be set up").caused_by(source))?
            .with_root_certificates(self.authorities()?);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates("cert", cert)?;
                let key = PrivateKeyDer::from_pem_slice(&read("key", key)?)
                    .map_err(|source| invalid("the file of the option `key` holds no key in PEM").caused_by(source))?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|source| invalid("`cert` and `key` cannot be used").caused_by(source))?
            }
        };
        Ok(Connector(MakeRustlsConnect::new(config)))
    }

    /// What connects with these files by the crate `tokio-postgres`, for a connection of one's own.
    ///
    /// # Errors
    /// When a file cannot be read or used, or there is no authority to trust.
    pub fn make_connect(&self) -> Result<MakeRustlsConnect, Error> {
        self.connector().map(|connector| connector.0)
    }

    fn authorities(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates("ca", ca)? {
                    roots
                        .add(certificate)
                        .map_err(|source| invalid("a certificate in `ca` is refused").caused_by(source))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(invalid("there is no authority to trust")
                .advise("give the server's authority as `ca`, or install the system's (ca-certificates)"));
        }
        Ok(roots)
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(option, path)?).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(invalid(format!("the file of the option `{option}` holds no certificate in PEM"))),
        Err(source) => Err(invalid(format!("the file of the option `{option}` is damaged")).caused_by(source)),
    }
}
