//! The name of the user whose process this is, for people to read.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    sync::LazyLock,
};

/// More than any system lets a user be called. What is longer comes from somebody who plays with the environment.
const LONGEST: usize = 64;

/// The user's name, looked up once.
///
/// The system's own list comes first: cron and containers set no variable, and `su` may leave another's behind. A
/// directory service has users that the list lacks; there the variables tell, as the login set them. Asking the
/// service itself would go through the C library's plug-ins, which can wait for a network and which a static build
/// does not have.
pub(crate) fn name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let number = rustix::process::getuid().as_raw();
        let listed = || File::open("/etc/passwd").ok().and_then(|list| find(BufReader::new(list), number));
        let stated = || ["LOGNAME", "USER"].iter().find_map(|variable| fitting(std::env::var(variable).ok()?));
        listed().or_else(stated).unwrap_or_else(|| number.to_string())
    });
    &NAME
}

/// The name of user `number` in a list as passwd(5) has it. Lines that are something else are passed over.
fn find(list: impl BufRead, number: u32) -> Option<String> {
    list.split(b'\n').map_while(Result::ok).find_map(|line| {
        let line = String::from_utf8(line).ok()?;
        let mut fields = line.split(':');
        let (name, _password, user) = (fields.next()?, fields.next()?, fields.next()?);
        (user.parse() == Ok(number)).then(|| fitting(name.to_owned())).flatten()
    })
}

fn fitting(name: String) -> Option<String> {
    (!name.is_empty() && name.len() <= LONGEST).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number_among_lines_that_are_none() {
        let list = b"root:x:0:0::/root:/bin/sh\n# a note\n+::::::\nbroken\n\xff:x:7:7\n:x:8:8\n\
            backup:x:34:34::/:/bin/sh\nalias:x:34:34::/:/bin/sh\nlast:x:4294967294:1";
        let found = |number| find(&list[..], number);
        assert_eq!(found(0).as_deref(), Some("root"));
        assert_eq!(found(34).as_deref(), Some("backup"), "the first of several");
        assert_eq!(found(4_294_967_294).as_deref(), Some("last"), "without a line's end");
        for unknown in [1, 7, 8, 9] {
            assert_eq!(found(unknown), None);
        }
    }
}
