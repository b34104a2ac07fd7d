//! Accounts in PostgreSQL rows.

use fencepost::{
    CompareAndSet, Edit, Error, Owner,
    patterns::{
        atomic::postgres::{Amounts, Versioned},
        update::{Found, Set, Shown},
    },
    url::StoreUrl,
};
use fencepost_postgres::PostgresConfig;
use tokio_postgres::{Client, Statement};

use super::{super::broken, BALANCE, Bank, Locked, Teller, Way, conflicts};
use crate::{
    floor::{
        Measuring,
        postgres::{connect, failed},
    },
    ground::Ground,
};

pub(super) struct Postgres<'g> {
    ground: &'g Ground,
    url: String,
    config: PostgresConfig,
    asking: Client,
    /// `SCHEMA.TABLE`
    table: String,
}

impl<'g> Postgres<'g> {
    /// Makes the table, in the schema that the locks are in.
    pub(super) async fn open(url: &str, ground: &'g Ground) -> Result<Self, Error> {
        let config = PostgresConfig::from_url(StoreUrl::parse(url)?)?;
        let asking = connect(&config).await?;
        let table = format!("{}.bench_{:.8}", config.schema, Owner::random()?.to_string());
        let make =
            format!("CREATE TABLE {table} (name text PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL)");
        asking.batch_execute(&make).await.map_err(failed)?;
        Ok(Self { ground, url: url.to_owned(), config, asking, table })
    }

    async fn bare(&self, client: Client) -> Result<Bare, Error> {
        let Self { table, .. } = self;
        let read = client.prepare(&format!("SELECT balance FROM {table} WHERE name = $1")).await.map_err(failed)?;
        let write = format!("UPDATE {table} SET balance = $2 WHERE name = $1");
        let write = client.prepare(&write).await.map_err(failed)?;
        Ok(Bare { client, read, write })
    }
}

impl Bank for Postgres<'_> {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn ways(&self) -> &'static [Way] {
        &[Way::Bare, Way::Lock, Way::Version, Way::ForUpdate, Way::Statement]
    }

    fn fill<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()> {
        Box::pin(async move {
            let fill = format!("INSERT INTO {} SELECT unnest($1::text[]), $2, 0", self.table);
            self.asking.execute(&fill, &[&accounts, &BALANCE]).await.map_err(failed).map(drop)
        })
    }

    fn balances<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, Vec<i64>> {
        Box::pin(async move {
            let each = format!(
                "SELECT balance FROM {} JOIN unnest($1::text[]) WITH ORDINALITY AS wanted (name, place) USING (name) \
                 ORDER BY place",
                self.table
            );
            let rows = self.asking.query(&each, &[&accounts]).await.map_err(failed)?;
            rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)
        })
    }

    fn teller<'a>(&'a self, way: Way) -> Measuring<'a, Box<dyn Teller>> {
        Box::pin(async move {
            let client = connect(&self.config).await?;
            let Self { table, .. } = self;
            let teller: Box<dyn Teller> = match way {
                Way::Lock => {
                    let locks = self.ground.client_of(&self.url).await?;
                    Box::new(Locked { locks, bare: self.bare(client).await? })
                }
                Way::Version => {
                    let accounts =
                        Versioned::of(table, "name", "balance", "version").prepare(&client).await.map_err(failed)?;
                    Box::new(ByVersion { client, accounts })
                }
                Way::ForUpdate => {
                    let accounts = Amounts::of(table, "name", "balance").prepare(&client).await.map_err(failed)?;
                    Box::new(ForUpdate { client, accounts })
                }
                Way::Statement => {
                    let one = client.prepare(&one_statement(table)).await.map_err(failed)?;
                    Box::new(InOneStatement { client, one })
                }
                Way::Bare => Box::new(self.bare(client).await?),
                Way::Watch | Way::CompareAndSet | Way::Script => unreachable!("{way:?} is no way in PostgreSQL"),
            };
            Ok(teller)
        })
    }

    fn clear<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()> {
        Box::pin(async move {
            let clear = format!("DELETE FROM {} WHERE name = ANY($1)", self.table);
            self.asking.execute(&clear, &[&accounts]).await.map_err(failed).map(drop)
        })
    }

    fn tidy(&self) -> Measuring<'_, ()> {
        Box::pin(async move { self.asking.batch_execute(&format!("DROP TABLE {}", self.table)).await.map_err(failed) })
    }
}

/// Two rows read and written in one transaction, which at the usual level keeps nobody from doing the same in between.
struct Bare {
    client: Client,
    read: Statement,
    write: Statement,
}

impl Teller for Bare {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            let transaction = self.client.transaction().await.map_err(failed)?;
            // In the order of their names, so that two that meet do not wait for each other in a circle.
            let mut both = [(from, -amount), (to, amount)];
            both.sort_unstable();
            for (account, change) in &mut both {
                let row = transaction.query_one(&self.read, &[account]).await.map_err(failed)?;
                *change += row.try_get::<_, i64>(0).map_err(failed)?;
            }
            for (account, balance) in both {
                transaction.execute(&self.write, &[&account, &balance]).await.map_err(failed)?;
            }
            transaction.commit().await.map_err(failed)?;
            Ok(0)
        })
    }
}

struct ByVersion {
    client: Client,
    accounts: Versioned<Statement>,
}

impl Teller for ByVersion {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            // In the order of their names, so that two that meet do not wait for each other in a circle.
            let (names, change) =
                if from < to { ([from, to], [-amount, amount]) } else { ([to, from], [amount, -amount]) };
            let mut both = BothRows { client: &mut self.client, accounts: &self.accounts, names };
            let moved = both.update(|old| {
                let old = old.unwrap_or_default();
                Edit::Write([old[0] + change[0], old[1] + change[1]])
            });
            conflicts(moved.await.map_err(failed)?)
        })
    }
}

/// Two rows as one value: both are written in one transaction, each on condition of its version.
struct BothRows<'a> {
    client: &'a mut Client,
    accounts: &'a Versioned<Statement>,
    names: [&'a str; 2],
}

impl CompareAndSet for BothRows<'_> {
    type Value = [i64; 2];
    type Seen = [Option<i64>; 2];
    type Error = tokio_postgres::Error;

    async fn read(&mut self) -> Result<Shown<[i64; 2], [Option<i64>; 2]>, tokio_postgres::Error> {
        let (mut value, mut seen) = ([0; 2], [None; 2]);
        for (place, name) in self.names.iter().enumerate() {
            match self.accounts.row::<i64, _, _>(&*self.client, name).read().await? {
                Ok(found) => (value[place], seen[place]) = (found.value.unwrap_or_default(), found.seen),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(Found { value: Some(value), seen }))
    }

    async fn set(
        &mut self,
        seen: [Option<i64>; 2],
        new: Option<&[i64; 2]>,
    ) -> Result<Set<[i64; 2], [Option<i64>; 2]>, tokio_postgres::Error> {
        let new = new.copied();
        let transaction = self.client.transaction().await?;
        for (place, name) in self.names.iter().enumerate() {
            let balance = new.map(|new| new[place]);
            let set = self.accounts.row::<i64, _, _>(&transaction, name).set(seen[place], balance.as_ref()).await?;
            if let Set::Conflict(_) = set {
                transaction.rollback().await?;
                return Ok(Set::Conflict(None));
            }
        }
        transaction.commit().await?;
        Ok(Set::Done)
    }
}

struct ForUpdate {
    client: Client,
    accounts: Amounts<Statement>,
}

impl Teller for ForUpdate {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            let transaction = self.client.transaction().await.map_err(failed)?;
            let moved = self.accounts.transfer(&transaction, &from, &to, amount).await.map_err(failed)?;
            moved.map_err(|refusal| broken(refusal.to_string()))?;
            transaction.commit().await.map_err(failed)?;
            Ok(0)
        })
    }
}

struct InOneStatement {
    client: Client,
    one: Statement,
}

/// The rows are locked in the order of their names before either is changed: else two that meet would wait in a circle.
fn one_statement(table: &str) -> String {
    format!(
        "WITH both_rows AS MATERIALIZED (SELECT name FROM {table} WHERE name IN ($1, $2) ORDER BY name FOR UPDATE), \
         taken AS (UPDATE {table} SET balance = balance - $3 \
                   WHERE name = $1 AND balance >= $3 AND (SELECT count(*) FROM both_rows) = 2 RETURNING 1) \
         UPDATE {table} SET balance = balance + $3 WHERE name = $2 AND EXISTS (SELECT FROM taken)"
    )
}

impl Teller for InOneStatement {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            match self.client.execute(&self.one, &[&from, &to, &amount]).await.map_err(failed)? {
                1 => Ok(0),
                _ => Err(broken("a transfer came to nothing".into())),
            }
        })
    }
}
