//! Accounts in Redis keys.

use fencepost::{
    Edit, Error,
    patterns::atomic::redis::{Amounts, Scripted, Values, Watching},
    url::StoreUrl,
};
use fencepost_redis::RedisConfig;
use redis::{aio::MultiplexedConnection, cmd};

use super::{super::broken, BALANCE, Bank, Locked, Teller, Way, conflicts};
use crate::{
    floor::{
        Measuring,
        redis::{connect, failed},
    },
    ground::Ground,
};

pub(super) struct Redis<'g> {
    ground: &'g Ground,
    url: String,
    config: RedisConfig,
    asking: MultiplexedConnection,
}

impl<'g> Redis<'g> {
    pub(super) async fn open(url: &str, ground: &'g Ground) -> Result<Self, Error> {
        let config = RedisConfig::from_url(StoreUrl::parse(url)?)?;
        Ok(Self { ground, url: url.to_owned(), asking: connect(&config).await.map_err(failed)?, config })
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Error> {
        connect(&self.config).await.map_err(failed)
    }
}

impl Bank for Redis<'_> {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn ways(&self) -> &'static [Way] {
        &[Way::Bare, Way::Lock, Way::Watch, Way::CompareAndSet, Way::Script]
    }

    fn fill<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()> {
        Box::pin(async move {
            let mut fill = cmd("MSET");
            for account in accounts {
                fill.arg(account).arg(BALANCE);
            }
            fill.query_async(&mut self.asking.clone()).await.map_err(failed)
        })
    }

    fn balances<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, Vec<i64>> {
        Box::pin(async move { cmd("MGET").arg(accounts).query_async(&mut self.asking.clone()).await.map_err(failed) })
    }

    fn teller<'a>(&'a self, way: Way) -> Measuring<'a, Box<dyn Teller>> {
        Box::pin(async move {
            let connection = self.connection().await?;
            let teller: Box<dyn Teller> = match way {
                Way::Lock => {
                    Box::new(Locked { locks: self.ground.client_of(&self.url).await?, bare: Bare(connection) })
                }
                Way::Watch => Box::new(Watched(Watching::over(connection))),
                Way::CompareAndSet => Box::new(Compared(connection)),
                Way::Script => Box::new(InOneScript(connection)),
                Way::Bare => Box::new(Bare(connection)),
                Way::Version | Way::ForUpdate | Way::Statement => unreachable!("{way:?} is no way in Redis"),
            };
            Ok(teller)
        })
    }

    fn clear<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()> {
        Box::pin(async move { cmd("DEL").arg(accounts).query_async(&mut self.asking.clone()).await.map_err(failed) })
    }

    fn tidy(&self) -> Measuring<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Bare(MultiplexedConnection);

impl Teller for Bare {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            let (has, gets): (i64, i64) =
                cmd("MGET").arg(&[from, to]).query_async(&mut self.0).await.map_err(failed)?;
            let mut write = cmd("MSET");
            write.arg(from).arg(has - amount).arg(to).arg(gets + amount);
            let () = write.query_async(&mut self.0).await.map_err(failed)?;
            Ok(0)
        })
    }
}

struct Watched(Watching);

impl Teller for Watched {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move { conflicts(self.0.update(&[from, to], moved(amount)).await.map_err(failed)?) })
    }
}

struct Compared(MultiplexedConnection);

impl Teller for Compared {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            conflicts(Scripted::on(&mut self.0).update(&[from, to], moved(amount)).await.map_err(failed)?)
        })
    }
}

fn moved(amount: i64) -> impl FnMut(Values) -> Edit<Values> + Send {
    move |old| {
        let number = |place: usize| -> i64 {
            let text = old.get(place).and_then(|value| std::str::from_utf8(value.as_deref()?).ok());
            text.and_then(|text| text.parse().ok()).unwrap_or_default()
        };
        let text = |number: i64| Some(number.to_string().into_bytes());
        Edit::Write(vec![text(number(0) - amount), text(number(1) + amount)])
    }
}

struct InOneScript(MultiplexedConnection);

impl Teller for InOneScript {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            let moved = Amounts::on(&mut self.0).transfer(from, to, amount).await.map_err(failed)?;
            moved.map(|_| 0).map_err(|refusal| broken(refusal.to_string()))
        })
    }
}
