//! A lock in Redis with fences from PostgreSQL, while somebody takes the lock from its holders again and again.

use fencepost_servers::RedisServer;

use crate::{
    database::Database,
    fenced::{Place, loses_nothing_by},
};

#[test]
fn no_update_is_lost_under_a_lock_in_redis_with_fences_from_postgres() {
    let (redis, directory) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let database = tokio::runtime::Runtime::new().unwrap().block_on(Database::of_locks());
    loses_nothing_by(&Place::File(directory.path().join("x")), &redis.url(), Some(&database.url()));
}
