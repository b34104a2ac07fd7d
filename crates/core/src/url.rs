//! The URLs that name stores.

pub mod settings;

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
    /// One for each host, where hosts have logins of their own.
    logins: Vec<Login>,
    path: String,
    options: BTreeMap<String, String>,
}

/// A user and a password.
#[derive(Clone, Default, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    password: Option<String>,
}

/// Stands before what is left of a URL once its secrets are taken out. No store answers to it.
const WITHHELD: &str = "withheld";

/// What options that hold a secret have in their names. A store that adds one keeps to it.
const SECRET: [&str; 5] = ["pass", "secret", "token", "auth", "credential"];

impl StoreUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], with a message that does not repeat the URL, since it may hold a
    /// password; [`ErrorKind::Misconfigured`] for what [`passed_on`](StoreUrl::passed_on) made of one that does.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| invalid("a store URL starts with a scheme, as in `file:/var/lock/app`"))?;
        if scheme == WITHHELD {
            return Err(withheld(rest));
        }
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+') {
            return Err(invalid("the URL's scheme holds a character that no scheme has"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash)),
            None => ("", rest),
        };
        let (login, hosts, logins) = hosts(authority)?;
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user: login.user,
            password: login.password,
            hosts,
            logins,
            path: decoded(path)?,
            options: options(query)?,
        })
    }

    /// What another program may be told of the URL `text`, in its environment for instance: all of it, or, where it
    /// holds a secret, a text that is refused with the reason. So whoever is told either uses the same store or
    /// none.
    pub fn passed_on(text: &str) -> String {
        match Self::parse(text) {
            Ok(url) if !url.holds_secret() => text.to_owned(),
            Ok(url) => format!("{WITHHELD}:{url}"),
            // What cannot be read may hold anything.
            Err(_) => format!("{WITHHELD}:"),
        }
    }

    /// Whether a secret stands in the URL itself, and not in a file that it names.
    fn holds_secret(&self) -> bool {
        let secret = |option: &str| SECRET.iter().any(|part| option.contains(part)) && !option.ends_with("file");
        let of_a_host = self.logins.iter().any(|login| login.password.is_some());
        self.password.is_some() || of_a_host || self.options.keys().any(|option| secret(&option.to_ascii_lowercase()))
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

    /// User and password of the host at `place`: its own where hosts have logins of their own, as in
    /// `scheme://a:b@h1,c:d@h2`, and the one that stands before all hosts otherwise.
    pub fn login_of(&self, place: usize) -> (Option<&str>, Option<&str>) {
        match self.logins.get(place) {
            Some(login) => (login.user.as_deref(), login.password.as_deref()),
            None => (self.user(), self.password()),
        }
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

/// The login before all hosts, the hosts, and their own logins where several have one.
fn hosts(authority: &str) -> Result<(Login, Vec<String>, Vec<Login>), Error> {
    let parts: Vec<&str> = authority.split(',').filter(|part| !part.is_empty()).collect();
    if parts.iter().filter(|part| part.contains('@')).count() > 1 {
        let split = parts.iter().map(|part| part.rsplit_once('@').unwrap_or(("", part)));
        let hosts = split.clone().map(|(_, host)| host.to_owned()).collect();
        let logins = split.map(|(credentials, _)| login(credentials)).collect::<Result<_, _>>()?;
        return Ok((Login::default(), hosts, logins));
    }
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let hosts = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
    Ok((login(credentials)?, hosts, Vec::new()))
}

fn login(credentials: &str) -> Result<Login, Error> {
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    Ok(Login { user: non_empty(decoded(user)?), password: non_empty(decoded(password)?) })
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

fn withheld(rest: &str) -> Error {
    let said = format!("the URL of the store {rest} holds a password, and was therefore not passed on to this program");
    Error::new(ErrorKind::Misconfigured, Operation::Parse, said).not_applied().advise(
        "put the password into a file and name that in the URL, as in `?password_file=/path`; that is passed on",
    )
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
    fn hosts_may_have_logins_of_their_own() {
        let url = StoreUrl::parse("redlock://a:p%401@h1:1,h2,:hunter2@h3:3").unwrap();
        assert_eq!(url.hosts(), ["h1:1", "h2", "h3:3"]);
        assert_eq!((url.user(), url.password()), (None, None));
        assert_eq!(url.login_of(0), (Some("a"), Some("p@1")));
        assert_eq!(url.login_of(1), (None, None));
        assert_eq!(url.login_of(2), (None, Some("hunter2")));
        assert!(!format!("{url} {url:?} {}", StoreUrl::passed_on("redlock://:hunter2@h1,:b@h2")).contains("hunter2"));
        let shared = StoreUrl::parse("redlock://a:b@c@h1,h2").unwrap();
        assert_eq!(shared.login_of(1), (Some("a"), Some("b@c")), "one login stands before all hosts");
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
    fn what_is_passed_on_is_the_same_store_or_none_and_never_a_secret() {
        for whole in ["file:/a%20b?network=yes", "redis://h1,h2/3?password_file=/p&key=/k", "postgres://app@h/db"] {
            assert_eq!(StoreUrl::passed_on(whole), whole);
        }
        for secret in
            ["redis://:hunter2@h:1/3", "rediss://bob:hunter2@h:1/3?ca=/c", "redis://h:1/3?Key%5FPassword=hunter2"]
        {
            let told = StoreUrl::passed_on(secret);
            assert!(told.starts_with("withheld:redis") && told.ends_with("://h:1/3"), "{told}");
            let refused = StoreUrl::parse(&told).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Misconfigured);
            assert!(
                refused.to_string().contains("redis") && refused.to_string().contains("password_file"),
                "{refused}"
            );
            assert_eq!(StoreUrl::passed_on(&told), "withheld:", "not even what looks like a store");
        }
        assert_eq!(StoreUrl::passed_on("hunter2"), "withheld:");
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
