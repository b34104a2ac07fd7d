//! TLS: where certificates come from and which cryptography is used.

use std::path::PathBuf;

use fencepost_core::{error::Error, url::settings::read};
use redis::{ClientTlsConfig, TlsCertificates};

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
    pub(crate) fn certificates(&self) -> Result<TlsCertificates, Error> {
        use_ring();
        let client_tls = self
            .client
            .as_ref()
            .map(|(cert, key)| Ok(ClientTlsConfig { client_cert: read("cert", cert)?, client_key: read("key", key)? }));
        Ok(TlsCertificates {
            client_tls: client_tls.transpose()?,
            root_cert: self.ca.as_deref().map(|ca| read("ca", ca)).transpose()?,
        })
    }
}

/// A program that builds in two providers of cryptography has no default one, and connecting would panic. One that
/// chose for itself keeps its choice.
fn use_ring() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Lost to another thread's choice, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
