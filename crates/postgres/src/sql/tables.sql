-- The tables of Fencepost, version 2.
--
-- Everything lies in one schema. Rows of `locks` stay when a lock is released, so that its fence goes on rising (F4); a row
-- that is deleted all the same leaves its fence behind in `state.floor`.

CREATE SCHEMA IF NOT EXISTS fencepost;

-- One row: what holds for all locks.
CREATE TABLE fencepost.state (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    version    integer     NOT NULL,  -- of these tables and functions
    oldest     integer     NOT NULL,  -- the oldest version of a client that may use them
    started    timestamptz NOT NULL,  -- the start of the server for which the rest was found
    system     bigint      NOT NULL,  -- the cluster's identifier; another one after dump and restore
    timeline   bigint      NOT NULL,  -- rises with each promotion of a standby
    base       bigint      NOT NULL,  -- base + timeline is the epoch: the high bits of a fence
    epoch      bigint      NOT NULL,  -- the epoch, shifted to where it stands in a fence
    floor      bigint      NOT NULL,  -- no lower fence is issued for a name without a row
    sessions   bigint      NOT NULL DEFAULT 0  -- numbers that were given to sessions, see `session_number`
);

-- One row for each name that was ever locked.
CREATE TABLE fencepost.locks (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    fence      bigint      NOT NULL CHECK (fence >= 0),       -- the last one that was issued
    tickets    bigint      NOT NULL DEFAULT 0,                -- the last place in the queue that was given out
    waiters    integer     NOT NULL DEFAULT 0,                -- rows of `claims` that wait
    readers    integer     NOT NULL DEFAULT 0,                -- rows of `claims` that hold, shared or permits
    permits    integer     CHECK (permits > 0),               -- the limit, while the name is in use as a semaphore
    since      timestamptz,                                   -- when it was granted last
    -- Who holds it exclusively; all of it null while nobody does.
    owner      bytea       CHECK (octet_length(owner) = 20),
    ttl        bigint      CHECK (ttl > 0),                   -- milliseconds
    expires_at timestamptz,
    client     integer,                                       -- hears of losses on the channel fencepost_<client>
    session    integer,                                       -- it is held for as long as this client's connection lives
    claimant   text,                                          -- JSON, for people
    -- Between these two moments no lease of `readers` ends: when they were looked at or joined last, and the first end.
    looked_at     timestamptz,
    readers_until timestamptz,
    PRIMARY KEY (namespace, name),
    CHECK ((owner IS NULL) = (expires_at IS NULL) AND (owner IS NULL) = (ttl IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Who waits; and who holds together with others.
CREATE TABLE fencepost.claims (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    ticket     bigint      NOT NULL,                          -- first come, first served
    owner      bytea       NOT NULL CHECK (octet_length(owner) = 20),
    holds      boolean     NOT NULL DEFAULT false,
    shared     boolean     NOT NULL DEFAULT false,
    permits    integer,                                       -- how many are wanted
    slots      integer[],                                     -- which ones are held
    fence      bigint,                                        -- of one that holds
    ttl        bigint      NOT NULL CHECK (ttl > 0),
    expires_at timestamptz,                                   -- of one that holds
    since      timestamptz NOT NULL,
    client     integer,                                       -- hears of its turn; null for one that asks again and again
    in_session boolean     NOT NULL DEFAULT false,            -- holds, or wants to, for as long as its connection lives
    seen_until timestamptz NOT NULL,                          -- until when one that asks counts as alive
    missing    timestamptz,                                   -- since when it was found out of reach
    claimant   text        NOT NULL,
    PRIMARY KEY (namespace, name, ticket),
    UNIQUE (namespace, name, owner)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Small values beside the locks.
CREATE TABLE fencepost.cells (
    namespace  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      bytea,                                         -- null once it was removed
    version    bigint      NOT NULL,
    writer     bytea       NOT NULL CHECK (octet_length(writer) = 20), -- the change that it is from
    expires_at timestamptz,                                   -- or when it was removed
    PRIMARY KEY (namespace, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- The epoch of this server: base + timeline. The base is chosen so that the first one is 0.
INSERT INTO fencepost.state (version, oldest, started, system, timeline, base, epoch, floor)
SELECT 2, 1, pg_postmaster_start_time(), (pg_control_system()).system_identifier, t.timeline, -t.timeline, 0, 0
FROM (SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline) AS t;
