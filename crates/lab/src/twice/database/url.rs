//! What a URL of libpq says, and how it names another database.

use fencepost_postgres::Tls;
use percent_encoding::percent_decode_str;

/// An option that wins over the path: for libpq and others each can name the database. Escapes are undone as they undo them.
pub(super) fn option_past_the_path(url: &str) -> Option<&'static str> {
    let (_, options) = url.split_once('?')?;
    options.split('&').find_map(|option| {
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        let name = percent_decode_str(name).decode_utf8_lossy();
        ["dbname", "database", "service", "servicefile"].into_iter().find(|past| name == *past)
    })
}

/// The URL with another database in its path.
pub(super) fn with_database(url: &str, database: &str) -> Result<String, String> {
    let (scheme, rest) =
        url.split_once("://").ok_or("the database is named by a URL, as in postgres://user@host/name")?;
    let (before, options) = rest.split_once('?').map_or((rest, None), |(before, options)| (before, Some(options)));
    let (authority, _) = before.split_once('/').ok_or("the URL names no database")?;
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    Ok(format!("{scheme}://{authority}/{database}{options}"))
}

/// The URL without what libpq's options say of TLS, and that. Whoever asks for TLS gets a server whose certificate and name are
/// checked, also where libpq would not.
pub(super) fn without_tls(url: &str) -> Result<(String, Option<Tls>), String> {
    let (before, options) = url.split_once('?').unwrap_or((url, ""));
    let (mut kept, mut tls, mut wanted) = (Vec::new(), Tls::default(), false);
    let (mut cert, mut key) = (None, None);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("sslmode", "disable" | "allow" | "prefer") => {}
            ("sslmode", "require" | "verify-ca" | "verify-full") => wanted = true,
            ("sslmode", _) => {
                return Err("sslmode is disable, allow, prefer, require, verify-ca or verify-full".to_owned());
            }
            ("sslrootcert", "system") => {}
            ("sslrootcert", file) => tls.ca = Some(file.into()),
            ("sslcert", file) => cert = Some(file.into()),
            ("sslkey", file) => key = Some(file.into()),
            _ => kept.push(option),
        }
    }
    tls.client = match (cert, key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert, key)),
        _ => return Err("sslcert and sslkey belong together".to_owned()),
    };
    let kept = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Ok((format!("{before}{kept}"), wanted.then_some(tls)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_url_changes() {
        let changed = |url| with_database(url, "other");
        assert_eq!(
            changed("postgres://a:b@h:1/x?sslmode=disable").as_deref(),
            Ok("postgres://a:b@h:1/other?sslmode=disable")
        );
        assert!(changed("postgres://h").is_err() && changed("host=h dbname=x").is_err());
    }

    #[test]
    fn what_a_url_says_of_tls_is_understood_as_libpq_does_or_more_strictly() {
        let (plain, tls) =
            without_tls("postgres://h/x?sslmode=verify-full&connect_timeout=5&sslrootcert=/ca.pem").unwrap();
        assert_eq!(plain, "postgres://h/x?connect_timeout=5");
        assert_eq!(tls, Some(Tls { ca: Some("/ca.pem".into()), client: None }));
        assert_eq!(without_tls("postgres://h/x?sslmode=prefer"), Ok(("postgres://h/x".to_owned(), None)));
        assert!(without_tls("postgres://h/x?sslmode=perhaps").is_err());
        assert!(without_tls("postgres://h/x?sslmode=require&sslcert=c").is_err());
    }
}
