//! C2 to C4: what is an error, what a name is, and what lies in the way.

use fencepost::{Acquired, Attempt, Efficiency, ErrorKind, Locks, Namespace};
use fencepost_core::{
    claim::{Release, Renewal},
    clock::BootClock,
    error::{Operation, Retry},
};

use crate::{
    site::{Site, Tampering, Verdict},
    steps::{
        LONG, SOON, acquired, claim, eventually, granted, locks, ms, name, nothing_left, queued, renewed, store, take,
        within,
    },
};

/// Source: symfony 45505; CURATOR-202.
pub async fn c2_busy_is_not_an_error_and_a_second_try_works(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    for _ in 0..3 {
        assert!(matches!(b.lock("x").wait(ms(300)).acquire().await, Ok(Attempt::Busy(_))));
    }
    drop(held);
    drop(acquired(within(SOON, "the same client's next try", b.lock("x").acquire()).await));
    Ok(())
}

pub async fn c2_unavailable_is_never_busy(site: &dyn Site) -> Verdict {
    let server = site.server()?;
    let (a, b) = (locks(site).await, locks(site).await);
    let _held = take(&a, "x", LONG).await;
    server.kill();
    for wait in [ms(0), ms(300)] {
        let error = within(SOON + SOON, "every call ends", b.lock("x").wait(wait).acquire()).await;
        let error = error.expect_err("a server that is down is not a busy lock");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}");
    }
    server.start();
    let again = within(SOON * 3, "the same client works again", b.lock("y").acquire()).await;
    drop(acquired(again));
    Ok(())
}

pub async fn c2_an_error_tells_what_it_is_about(site: &dyn Site) -> Verdict {
    let server = site.server()?;
    let locks = locks(site).await;
    let mut lease = take(&locks, "orders/1001", LONG).await;
    server.kill();
    let error = within(fencepost::RELEASE_WITHIN + SOON, "every call ends", lease.release()).await;
    let error = error.expect_err("the server is down");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Operation::Release));
    assert_eq!(error.lock(), Some(&name("orders/1001")));
    assert_eq!(error.store(), Some(site.capabilities().store));
    assert!(error.to_string().contains("orders/1001"), "{error}");
    assert!(!error.to_string().contains(&lease.owner().to_string()), "an owner value is a secret");
    Ok(())
}

/// Source: redlock-rb 148.
pub async fn c2_every_verb_survives_forgotten_scripts(site: &dyn Site) -> Verdict {
    site.tamper(Tampering::FlushScripts).await?;
    let store = store(site).await;
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    let forget = async || site.tamper(Tampering::FlushScripts).await;
    forget().await?;
    granted(&store, &holder).await;
    forget().await?;
    queued(&store, &waiter).await;
    forget().await?;
    assert!(matches!(renewed(&store, &holder).await, Ok(Renewal::Renewed { .. })));
    forget().await?;
    assert_eq!(store.inspect(None).await.expect("the listing").len(), 1);
    forget().await?;
    assert_eq!(store.release(&holder.holding).await.expect("an answer"), Release::Released);
    forget().await?;
    within(SOON, "the turn comes", store.turn(&waiter)).await.expect("a grant");
    forget().await?;
    store.force(&name("x"), None).await.expect("an administrator's answer");
    Ok(())
}

pub async fn c2_every_verb_survives_a_restart(site: &dyn Site) -> Verdict {
    let server = site.server()?;
    let store = store(site).await;
    let before = claim("before", LONG);
    granted(&store, &before).await;
    server.kill();
    server.start();
    let claimed = claim("x", LONG);
    eventually(SOON * 3, "the same client works again", async || {
        store.claim(&claimed, fencepost_core::claim::Patience::Once).await.is_ok()
    })
    .await;
    assert!(matches!(renewed(&store, &claimed).await, Ok(Renewal::Renewed { .. })));
    let waiter = claim("x", LONG);
    queued(&store, &waiter).await;
    assert_eq!(store.release(&claimed.holding).await.expect("an answer"), Release::Released);
    within(SOON, "the turn comes", store.turn(&waiter)).await.expect("a grant");
    assert!(!store.inspect(None).await.expect("the listing").is_empty());
    Ok(())
}

/// Names that are easily taken for each other, or for something else, by a file system, a pattern or a key scheme.
pub async fn c3_names_never_collide(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let long = "x".repeat(511);
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a:b",
        "a\\b",
        ".",
        "..",
        "../a",
        "/",
        "a.lock",
        "a.",
        "-a",
        "{a}",
        "{a",
        "a}b",
        "*",
        "a*",
        "?",
        "[a]",
        "é",
        "e\u{301}",
        "이름",
        "\u{202e}a",
        "queue",
        "a:queue",
        "a/queue",
        "%",
        "%25",
        "~",
        "#a",
        "CON",
        "a\u{a0}",
    ];
    let names: Vec<String> =
        names.iter().map(|name| (*name).to_owned()).chain([format!("{long}x"), format!("{long}y"), long]).collect();
    let mut claims = Vec::new();
    for text in &names {
        let claim = claim(text, LONG);
        granted(&store, &claim).await;
        claims.push(claim);
    }
    let mut listed: Vec<String> = store.inspect(None).await.expect("the listing").iter().map(named).collect();
    let mut expected = names.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected, "every name reads back as it was given");
    for claim in claims {
        assert_eq!(store.release(&claim.holding).await.expect("an answer"), Release::Released, "{:?}", claim.name());
    }
    nothing_left(site, SOON).await;
    return Ok(());

    fn named(state: &fencepost_core::claim::LockState) -> String {
        state.name.as_str().to_owned()
    }
}

pub async fn c3_bad_names_are_refused(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    for bad in ["", "a\nb", "a\0b", "\u{85}", &"x".repeat(513)] {
        let error = locks.lock(bad).acquire().await.expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
    }
    Ok(())
}

pub async fn c3_namespaces_are_apart(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let _held = take(&locks, "b/x", LONG).await;
    for namespace in ["other", "conformance/b", "conformance:b", "conforman", "conformance*", "*"] {
        let namespace = Namespace::new(namespace).expect("a valid namespace");
        let other = Locks::builder(&site.url()).namespace(namespace.clone()).open().await.expect("the store opens");
        let other = other.for_efficiency();
        assert!(other.store().inspect(None).await.expect("the listing").is_empty(), "{namespace} sees another's locks");
        for lock in ["b/x", "x"] {
            let outcome = other.lock(lock).ttl(LONG).wait(ms(0)).acquire().await;
            assert!(matches!(outcome, Ok(Acquired(_))), "{namespace} {lock}: {outcome:?}");
        }
    }
    let seen = locks.store().inspect(None).await.expect("the listing");
    assert_eq!(seen.len(), 1, "{seen:?}");
    Ok(())
}

pub async fn c4_a_foreign_value_is_reported_at_once(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    site.tamper(Tampering::PlantForeign(&name("x"))).await?;
    refused(&locks).await;
    if site.tamper(Tampering::PlantWrongType(&name("x"))).await.is_ok() {
        refused(&locks).await;
    }
    site.tamper(Tampering::Delete(&name("x"))).await?;
    drop(take(&locks, "x", LONG).await); // it was never touched
    take(&locks, "y", LONG).await.release().await.expect("other names are not concerned");
    return Ok(());

    async fn refused(locks: &Locks<Efficiency>) {
        for wait in [ms(0), ms(20_000)] {
            let error = within(SOON, "no endless wait", locks.lock("x").wait(wait).acquire()).await;
            let error = error.expect_err("what lies there is not ours");
            assert!(matches!(error.kind(), ErrorKind::ForeignValue | ErrorKind::Corrupt), "{error}");
            assert!(error.advice().is_some(), "it says what to do: {error}");
        }
    }
}

pub async fn c4_missing_rights_are_reported_at_once(site: &dyn Site) -> Verdict {
    let url = site.forbidden_url()?;
    let outcome = within(SOON, "no endless wait", async {
        let opened = Locks::builder(&url).namespace(site.namespace()).clock(BootClock::shared()).open().await?;
        opened.for_efficiency().lock("x").acquire().await
    })
    .await;
    let error = outcome.expect_err("it must be refused");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(!error.to_string().contains("wrong-password"), "no secret in a message: {error}");
    Ok(())
}
