//! A lock in Redis with fences from PostgreSQL, while somebody takes the lock from its holders again and again.

use fencepost::url::StoreUrl;
use fencepost_postgres::PostgresConfig;
use fencepost_servers::RedisServer;

use crate::{
    database::Database,
    fenced::{Place, loses_nothing_by},
};

#[test]
fn no_update_is_lost_under_a_lock_in_redis_with_fences_from_postgres() {
    let (redis, database, directory) = (RedisServer::start(), Database::new(), tempfile::tempdir().unwrap());
    let config = PostgresConfig::from_url(StoreUrl::parse(&database.url()).unwrap()).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(fencepost_postgres::migrate(&config)).unwrap();
    loses_nothing_by(&Place::File(directory.path().join("x")), &redis.url(), Some(&database.url()));
}
