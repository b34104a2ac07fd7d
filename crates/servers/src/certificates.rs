//! Certificates by an authority of our own, made by `openssl`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// An authority, a certificate by it for a server at 127.0.0.1, and one for a client. The files `ca`, `server` and
/// `client` end in `.pem` and `.key`, and are removed with this value.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes them. The server has `names` besides its address, each as `DNS:name`; the client is called `client`.
    ///
    /// # Panics
    /// When `openssl` is missing or fails.
    pub fn make(names: &[&str], client: &str) -> Self {
        let files = Self(tempfile::tempdir().expect("a temporary directory"));
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        files.openssl(&format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
        let names = [&["IP:127.0.0.1"], names].concat().join(",");
        std::fs::write(files.path("names"), format!("subjectAltName={names}\n")).expect("a temporary directory");
        for (who, name) in [("server", "server"), ("client", client)] {
            files.openssl(&format!("req {new_key} -keyout {who}.key -out {who}.csr -subj /CN={name}"));
            let sign =
                format!("x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names");
            files.openssl(&format!("{sign} -out {who}.pem"));
        }
        files
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// Where one of the files is.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// The same as text, for a URL or a setting.
    pub fn at(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    fn openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(arguments.split_whitespace()).current_dir(self.directory()).output();
        let output = output.expect("openssl must be installed for this test: the package openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
