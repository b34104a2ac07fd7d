-- What `fencepost migrate --print` printed for version 1, as it was.
-- The tables of Fencepost, version 1.
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
SELECT 1, 1, pg_postmaster_start_time(), (pg_control_system()).system_identifier, t.timeline, -t.timeline, 0, 0
FROM (SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline) AS t;

-- Finds the epoch again after the server changed: a restart, a promoted standby, a dump that was restored elsewhere.
--
-- A fence is an epoch in the high 23 bits and a counter in the low 40. An asynchronous standby that is promoted may lack
-- the last grants of its former primary, but it has a higher timeline, hence a higher epoch, hence higher fences. A dump
-- may be restored on a server with any timeline: the base then rises so far that a thousand promotions of the former
-- server, after the dump, stay below it.

CREATE FUNCTION fencepost.find_epoch() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s            fencepost.state;
    now_timeline bigint;
    now_system   bigint;
BEGIN
    SELECT * INTO s FROM fencepost.state FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the row of fencepost.state is gone' USING ERRCODE = 'FP001';
    END IF;
    IF s.started = pg_postmaster_start_time() THEN
        RETURN; -- another has found it meanwhile
    END IF;
    now_timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
    now_system := (pg_control_system()).system_identifier;
    IF s.system <> now_system THEN
        s.base := s.base + s.timeline + 1000 - now_timeline;
    END IF;
    UPDATE fencepost.state
    SET started = pg_postmaster_start_time(), system = now_system, timeline = now_timeline, base = s.base,
        epoch = greatest(s.epoch, (s.base + now_timeline) << 40);
END $$;

-- A row that goes leaves its fence behind, whoever deletes it, and its holder is told (L4).
CREATE FUNCTION fencepost.leave_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.state SET floor = OLD.fence WHERE floor < OLD.fence;
    PERFORM fencepost.tell_loss(OLD.client, OLD.owner);
    PERFORM fencepost.evict(OLD.namespace, OLD.name);
    RETURN NULL;
END $$;

-- Tells a holder that its grant is gone.
CREATE FUNCTION fencepost.tell_loss(client integer, owner bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF client IS NOT NULL AND owner IS NOT NULL THEN
        PERFORM pg_notify('fencepost_' || client, 'l' || encode(substr(owner, 1, 8), 'hex'));
    END IF;
END $$;

-- Removes those who hold a lock together with others, and tells them.
CREATE FUNCTION fencepost.evict(a_namespace text, a_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    FOR c IN
        DELETE FROM fencepost.claims AS q WHERE q.namespace = a_namespace AND q.name = a_name AND q.holds RETURNING q.*
    LOOP
        PERFORM fencepost.tell_loss(c.client, c.owner);
    END LOOP;
END $$;

CREATE TRIGGER leave_fence AFTER DELETE ON fencepost.locks
    FOR EACH ROW EXECUTE FUNCTION fencepost.leave_fence();

CREATE FUNCTION fencepost.keep_fences() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencepost.% is not truncated: its fences or versions would start again', TG_TABLE_NAME
        USING ERRCODE = 'FP001', HINT = 'DELETE keeps them rising';
END $$;

CREATE TRIGGER keep_fences BEFORE TRUNCATE ON fencepost.locks EXECUTE FUNCTION fencepost.keep_fences();

-- A lock's queue. Whoever calls these has the lock's row locked.

-- A number for a session, by which its grants are known. Never one that an earlier session had, whose grants would come to
-- life again; and none that a client without a session draws, which has one below 2^30.
CREATE FUNCTION fencepost.session_number() RETURNS integer LANGUAGE sql AS $$
    UPDATE fencepost.state SET sessions = sessions + 1 RETURNING (1073741824 + sessions % 1073741824)::integer
$$;

-- Whether a client's connection for messages lives: it has an advisory lock for as long as it does, of the two keys that are
-- the number of this table, which nobody else's is, and the client's own. That connection itself would get the lock once
-- more, and says by a setting who it is.
CREATE FUNCTION fencepost.is_alive(client integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(current_setting('fencepost_session.client', true) = client::text, false)
        OR NOT pg_try_advisory_xact_lock_shared('fencepost.locks'::regclass::integer, client)
$$;

-- Whether one that holds together with others still does.
CREATE FUNCTION fencepost.is_live(c fencepost.claims) RETURNS boolean LANGUAGE sql AS $$
    SELECT c.holds AND c.expires_at > clock_timestamp() AND (NOT c.in_session OR fencepost.is_alive(c.client))
$$;

-- Whether somebody holds a lock exclusively: until the lease has run out, or the session has ended.
CREATE FUNCTION fencepost.is_held_alone(l fencepost.locks) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(l.expires_at > clock_timestamp(), false) AND (l.session IS NULL OR fencepost.is_alive(l.session))
$$;

-- Whether a look at the row is enough to say that a lock is another's. Such a try writes nothing.
CREATE FUNCTION fencepost.is_plainly_busy(l fencepost.locks, a_owner bytea) RETURNS boolean LANGUAGE sql AS $$
    SELECT l.owner <> a_owner AND fencepost.is_held_alone(l)
        AND (l.session IS NOT NULL OR l.expires_at <= clock_timestamp() + l.ttl * interval '1 millisecond')
$$;

-- Whether anybody holds a lock.
CREATE FUNCTION fencepost.is_held(l fencepost.locks) RETURNS boolean LANGUAGE sql AS $$
    SELECT fencepost.is_held_alone(l) OR l.readers > 0 AND EXISTS (
        SELECT FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND fencepost.is_live(q)
    )
$$;

-- For how many milliseconds the first lease that ends lasts yet; null for sessions, and for nobody. None for one that somebody made
-- endless: whoever settles it finds it so and cuts it down (see `locked_row`).
CREATE FUNCTION fencepost.left_of(l fencepost.locks) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN isfinite(ends) THEN greatest(extract(epoch FROM ends - clock_timestamp()) * 1000, 0)::bigint ELSE 0 END
    FROM (
        SELECT CASE
            WHEN l.readers > 0 THEN (
                SELECT min(q.expires_at) FROM fencepost.claims AS q
                WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND NOT q.in_session
            )
            WHEN l.session IS NULL THEN l.expires_at
        END AS ends
    ) AS first
    WHERE ends IS NOT NULL
$$;

-- What is known of who is in the way: the first holder, and how many wait before a ticket, or at all, as far as a thousand.
CREATE FUNCTION fencepost.in_the_way(
    l fencepost.locks, a_ticket bigint,
    OUT holder text, OUT holder_fence bigint, OUT since_ms bigint, OUT left_ms bigint, OUT ahead bigint
) LANGUAGE plpgsql AS $$
BEGIN
    holder := l.claimant;
    holder_fence := l.fence;
    since_ms := extract(epoch FROM l.since) * 1000;
    left_ms := fencepost.left_of(l);
    IF l.readers > 0 THEN
        SELECT q.claimant, q.fence, extract(epoch FROM q.since) * 1000 INTO holder, holder_fence, since_ms
        FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds ORDER BY q.ticket LIMIT 1;
    END IF;
    SELECT count(*) INTO ahead FROM (
        SELECT FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND NOT q.holds
          AND q.ticket < coalesce(a_ticket, 9223372036854775807)
        LIMIT 1000
    ) AS before;
END $$;

-- Until when a grant lasts. One for a session lasts until that ends, once it was confirmed.
CREATE FUNCTION fencepost.end_of(ttl bigint, session integer) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT CASE WHEN session IS NULL THEN clock_timestamp() + ttl * interval '1 millisecond' ELSE 'infinity' END
$$;

-- Whether a waiter would hear of its turn.
CREATE FUNCTION fencepost.in_reach(c fencepost.claims) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN c.client IS NULL THEN c.seen_until > clock_timestamp() ELSE fencepost.is_alive(c.client) END
$$;

-- The first waiter in reach; `asks` is in reach by asking. Who is out of reach is passed over, and after ten seconds of
-- it removed.
CREATE FUNCTION fencepost.first_in_reach(l fencepost.locks, asks bytea) RETURNS fencepost.claims LANGUAGE plpgsql AS $$
DECLARE
    c    fencepost.claims;
    gone integer := 0;
    queued boolean := false;
BEGIN
    FOR c IN
        SELECT * FROM fencepost.claims AS q WHERE q.namespace = l.namespace AND q.name = l.name AND NOT q.holds
        ORDER BY q.ticket
    LOOP
        queued := true;
        IF c.owner = asks OR fencepost.in_reach(c) THEN
            EXIT;
        ELSIF c.missing IS NULL THEN
            UPDATE fencepost.claims AS q SET missing = clock_timestamp()
            WHERE q.namespace = l.namespace AND q.name = l.name AND q.ticket = c.ticket;
        ELSIF c.missing < clock_timestamp() - interval '10 seconds' THEN
            DELETE FROM fencepost.claims AS q
            WHERE q.namespace = l.namespace AND q.name = l.name AND q.ticket = c.ticket;
            gone := gone + 1;
        END IF;
        c := NULL;
    END LOOP;
    IF gone > 0 OR NOT queued THEN
        UPDATE fencepost.locks AS k SET waiters = CASE WHEN queued THEN greatest(k.waiters - gone, 0) ELSE 0 END
        WHERE k.namespace = l.namespace AND k.name = l.name;
    END IF;
    RETURN c;
END $$;

-- Whether a claim that nobody comes before can be granted. An owner who is still named holds.
CREATE FUNCTION fencepost.fits(l fencepost.locks, c fencepost.claims) RETURNS boolean LANGUAGE sql AS $$
    SELECT l.owner IS NULL AND CASE
        WHEN c.permits IS NOT NULL THEN l.permits >= c.permits + (
            SELECT coalesce(sum(q.permits), 0) FROM fencepost.claims AS q
            WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds
        )
        WHEN c.shared THEN true
        ELSE l.readers = 0
    END
$$;

-- Grants a lock to a claim, which leaves the queue if it stood there. Answers the lock as it is now; the grant of one that
-- holds together with others is a row of `claims`.
CREATE FUNCTION fencepost.grant_to(l fencepost.locks, c fencepost.claims, until timestamptz) RETURNS fencepost.locks
LANGUAGE plpgsql AS $$
DECLARE
    alone boolean := NOT c.shared AND c.permits IS NULL;
    left_queue integer;
BEGIN
    DELETE FROM fencepost.claims AS q WHERE q.namespace = l.namespace AND q.name = l.name AND q.owner = c.owner;
    GET DIAGNOSTICS left_queue = ROW_COUNT;
    IF alone THEN
        UPDATE fencepost.locks AS k
        SET fence = greatest(k.fence, s.epoch, s.floor) + 1, owner = c.owner, ttl = c.ttl, client = c.client,
            session = CASE WHEN c.in_session THEN c.client END, expires_at = until,
            since = clock_timestamp(), claimant = c.claimant, waiters = greatest(k.waiters - left_queue, 0)
        FROM fencepost.state AS s
        WHERE k.namespace = l.namespace AND k.name = l.name
        RETURNING k.* INTO l;
        RETURN l;
    END IF;
    -- A reader has the fence of the last writer (F3).
    UPDATE fencepost.locks AS k
    SET fence = CASE WHEN c.shared THEN k.fence ELSE greatest(k.fence, s.epoch, s.floor) + 1 END,
        owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL,
        since = clock_timestamp(), tickets = k.tickets + 1, readers = k.readers + 1,
        waiters = greatest(k.waiters - left_queue, 0)
    FROM fencepost.state AS s
    WHERE k.namespace = l.namespace AND k.name = l.name
    RETURNING k.* INTO l;
    INSERT INTO fencepost.claims
        (namespace, name, ticket, owner, holds, shared, permits, slots, fence, ttl, expires_at, since, client, in_session,
         seen_until, claimant)
    VALUES (l.namespace, l.name, l.tickets, c.owner, true, c.shared, c.permits, fencepost.free_slots(l, c.permits), l.fence,
            c.ttl, until, clock_timestamp(), c.client, c.in_session, clock_timestamp(), c.claimant);
    RETURN l;
END $$;

-- The lowest slots of a semaphore that nobody has. Among as many as are taken and wanted there are enough.
CREATE FUNCTION fencepost.free_slots(l fencepost.locks, wanted integer) RETURNS integer[] LANGUAGE sql AS $$
    WITH taken AS (
        SELECT unnest(q.slots) AS slot FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds
    )
    SELECT array_agg(slot) FROM (
        SELECT free_one AS slot FROM generate_series(0, wanted - 1 + (SELECT count(*) FROM taken)::integer) AS free_one
        WHERE NOT EXISTS (SELECT FROM taken WHERE taken.slot = free_one)
        ORDER BY free_one LIMIT wanted
    ) AS free
$$;

-- Hands a lock to a waiter for a second, in which he has to confirm (T1), and tells him. Answers the lock as it is now.
CREATE FUNCTION fencepost.hand_to(l fencepost.locks, c fencepost.claims) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
BEGIN
    l := fencepost.grant_to(l, c, clock_timestamp() + least(c.ttl, 1000) * interval '1 millisecond');
    IF c.client IS NOT NULL THEN
        PERFORM pg_notify('fencepost_' || c.client, 'g' || encode(substr(c.owner, 1, 8), 'hex'));
    END IF;
    RETURN l;
END $$;

-- Hands a lock to the waiters in reach that can have it now, first come first: one that wants it alone, all readers before
-- the next of those, or as many as there are permits for (W2).
CREATE FUNCTION fencepost.serve(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    WHILE l.waiters > 0 AND l.owner IS NULL LOOP
        c := fencepost.first_in_reach(l, NULL);
        EXIT WHEN c.ticket IS NULL OR NOT fencepost.fits(l, c);
        l := fencepost.hand_to(l, c);
    END LOOP;
    RETURN l;
END $$;

-- Takes a lock from whoever holds it alone, and hands it on or leaves it free.
CREATE FUNCTION fencepost.pass_on(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
BEGIN
    l.owner := NULL; -- in the row it is overwritten by the next grant
    l := fencepost.serve(l);
    IF l.owner IS NULL AND l.readers = 0 THEN
        UPDATE fencepost.locks AS k
        SET owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL
        WHERE k.namespace = l.namespace AND k.name = l.name
        RETURNING k.* INTO l;
    END IF;
    RETURN l;
END $$;

-- Locks a lock's row for a change, checks it, and removes those whose shared grant has ended. Null when there is none.
CREATE FUNCTION fencepost.locked_row(a_namespace text, a_name text) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
BEGIN
    IF NOT EXISTS (SELECT FROM fencepost.state WHERE started = pg_postmaster_start_time()) THEN
        PERFORM fencepost.find_epoch();
    END IF;
    SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_name FOR NO KEY UPDATE;
    IF FOUND AND (l.fence IS NULL OR l.fence < 0) THEN
        RAISE EXCEPTION 'the last fence of a lock cannot be read' USING ERRCODE = 'FP001';
    END IF;
    -- The clock went back, or somebody took the expiry off: from now on it lasts one TTL at most. That is never less than
    -- what its holder believes, who counts from a renewal in the past.
    IF l.session IS NULL AND l.expires_at > clock_timestamp() + l.ttl * interval '1 millisecond' THEN
        l.expires_at := clock_timestamp() + l.ttl * interval '1 millisecond';
        UPDATE fencepost.locks AS k SET expires_at = l.expires_at WHERE k.namespace = a_namespace AND k.name = a_name;
    END IF;
    IF l.readers > 0 THEN
        UPDATE fencepost.claims AS q SET expires_at = clock_timestamp() + q.ttl * interval '1 millisecond'
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.holds AND NOT q.in_session
          AND q.expires_at > clock_timestamp() + q.ttl * interval '1 millisecond';
        DELETE FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.holds AND NOT fencepost.is_live(q);
        IF FOUND THEN
            UPDATE fencepost.locks AS k
            SET readers = (SELECT count(*) FROM fencepost.claims AS q
                           WHERE q.namespace = a_namespace AND q.name = a_name AND q.holds)
            WHERE k.namespace = a_namespace AND k.name = a_name
            RETURNING k.* INTO l;
        END IF;
    END IF;
    RETURN l;
END $$;

-- Takes a lock alone, confirms one that was handed over, or takes a place in its queue. One transaction of one statement.
--
-- patience  'once'   answer busy and leave nothing behind
--           'queue'  take a place in the queue, or keep it
-- a_hears   the client's connection for messages is there already; a waiter without one counts as alive for ten seconds
-- a_in_session  the grant lasts as long as the client's connection for messages, and not for a TTL
--
-- Answers what `claim` answers, as JSON.
--
-- A claim can be repeated: it answers as the first one did. A busy 'once' writes nothing. Only clock_timestamp() is asked:
-- now() is the transaction's beginning, which may lie before a wait for the row.
--
-- What is wanted most of all, a lock that is free or was handed to this owner, is one update. It lies apart from the rest,
-- without a variable or a column of an answer that it does not need: they cost a tenth of it.
CREATE FUNCTION fencepost.take(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_patience text,
    a_hears boolean, a_in_session boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a_session integer := CASE WHEN a_in_session THEN a_client END;
    issued    bigint;
BEGIN
    -- The row's own counter is raised, and not a sequence: nextval() would be drawn before the wait for the row, and
    -- numbers would go backwards.
    UPDATE fencepost.locks AS k
    SET fence = CASE WHEN k.owner IS NULL THEN greatest(k.fence, s.epoch, s.floor) + 1 ELSE k.fence END,
        since = CASE WHEN k.owner IS NULL THEN clock_timestamp() ELSE k.since END,
        owner = a_owner, ttl = a_ttl, expires_at = fencepost.end_of(a_ttl, a_session), session = a_session,
        client = a_client, claimant = a_claimant, permits = NULL
    FROM fencepost.state AS s
    WHERE k.namespace = a_namespace AND k.name = a_name AND k.fence >= 0 AND s.started = pg_postmaster_start_time()
      AND (k.owner IS NULL AND k.waiters = 0 AND k.readers = 0
           OR k.owner = a_owner AND k.expires_at > clock_timestamp() AND k.session IS NOT DISTINCT FROM a_session)
    RETURNING k.fence INTO issued;
    IF issued IS NOT NULL THEN
        RETURN '{"outcome":"granted","issued":' || issued || '}';
    END IF;
    RETURN (SELECT to_json(answer) FROM fencepost.claim(
        a_namespace, a_name, a_owner, a_ttl, a_claimant, a_client, a_patience, a_hears, a_in_session,
        false, NULL, NULL) AS answer);
END $$;

-- The same, however it is wanted and whoever holds or waits.
--
-- a_shared   to be held together with others who want it so
-- a_permits  so many of the a_of permits of a semaphore
-- outcome    'granted', with the fence and the slots of permits
--            'busy', 'queued', with what is known of the holder
--            'refused': the name is in use as a semaphore of so many permits, or as a lock where "limit" is null
CREATE FUNCTION fencepost.claim(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_patience text,
    a_hears boolean, a_in_session boolean, a_shared boolean, a_permits integer, a_of integer,
    OUT outcome text, OUT issued bigint, OUT slots integer[], OUT "limit" integer,
    OUT holder text, OUT holder_fence bigint, OUT since_ms bigint, OUT left_ms bigint, OUT ahead bigint
) LANGUAGE plpgsql AS $$
DECLARE
    l       fencepost.locks;
    c       fencepost.claims;
    wanted  fencepost.claims;
    a_session integer := CASE WHEN a_in_session THEN a_client END;
    q_client integer := CASE WHEN a_hears THEN a_client END;
BEGIN
    LOOP
        SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_name;
        IF NOT FOUND THEN
            -- Without a fence yet. It gets one in a later statement, which sees the floor that a deletion of this name has
            -- left behind just before.
            INSERT INTO fencepost.locks (namespace, name, fence) VALUES (a_namespace, a_name, 0)
            ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;
        IF a_patience = 'once' AND a_permits IS NULL AND fencepost.is_plainly_busy(l, a_owner)
            AND NOT EXISTS (SELECT FROM fencepost.claims AS q
                            WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner)
        THEN
            outcome := 'busy';
            EXIT;
        END IF;
        l := fencepost.locked_row(a_namespace, a_name);
        CONTINUE WHEN l.name IS NULL;

        -- A repeat of a claim, or its confirmation.
        SELECT * INTO c FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
        IF l.owner = a_owner AND fencepost.is_held_alone(l) AND l.session IS NOT DISTINCT FROM a_session THEN
            UPDATE fencepost.locks AS k
            SET ttl = a_ttl, expires_at = fencepost.end_of(a_ttl, a_session), client = a_client
            WHERE k.namespace = a_namespace AND k.name = a_name;
            outcome := 'granted';
            issued := l.fence;
            RETURN;
        ELSIF c.holds AND a_in_session AND c.client <> a_client THEN
            PERFORM fencepost.give_back(a_namespace, a_name, a_owner); -- it was held by a session that is another one by now
            CONTINUE;
        ELSIF c.holds THEN
            UPDATE fencepost.claims AS q
            SET ttl = a_ttl, expires_at = fencepost.end_of(a_ttl, a_session), client = a_client
            WHERE q.namespace = a_namespace AND q.name = a_name AND q.ticket = c.ticket;
            outcome := 'granted';
            issued := c.fence;
            slots := c.slots;
            RETURN;
        END IF;
        IF l.owner = a_owner OR NOT fencepost.is_held_alone(l) THEN
            l.owner := NULL; -- ended, and overwritten by the grant that follows
        END IF;

        -- What the name is, says whoever comes first.
        IF l.permits IS DISTINCT FROM a_of THEN
            IF l.owner IS NULL AND l.readers = 0 AND NOT EXISTS (
                SELECT FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner <> a_owner
            ) THEN
                UPDATE fencepost.locks AS k SET permits = a_of WHERE k.namespace = a_namespace AND k.name = a_name;
                l.permits := a_of;
            ELSE
                outcome := 'refused';
                "limit" := l.permits;
                IF c.ticket IS NOT NULL THEN
                    PERFORM fencepost.give_back(a_namespace, a_name, a_owner);
                END IF;
                RETURN;
            END IF;
        END IF;

        -- Whoever came before is served before.
        LOOP
            c := NULL;
            IF l.waiters > 0 THEN
                c := fencepost.first_in_reach(l, a_owner);
            END IF;
            EXIT WHEN c.ticket IS NULL OR c.owner = a_owner OR NOT fencepost.fits(l, c);
            l := fencepost.hand_to(l, c);
        END LOOP;
        wanted.owner := a_owner;
        wanted.shared := a_shared;
        wanted.permits := a_permits;
        wanted.ttl := a_ttl;
        wanted.client := a_client;
        wanted.in_session := a_in_session;
        wanted.claimant := a_claimant;
        IF (c.ticket IS NULL OR c.owner = a_owner) AND fencepost.fits(l, wanted) THEN
            l := fencepost.grant_to(l, wanted, fencepost.end_of(a_ttl, a_session));
            outcome := 'granted';
            issued := l.fence;
            SELECT q.slots INTO slots FROM fencepost.claims AS q
            WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
            RETURN;
        END IF;

        SELECT * INTO c FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
        IF a_patience = 'once' THEN
            outcome := 'busy';
            IF c.ticket IS NOT NULL THEN
                PERFORM fencepost.give_back(a_namespace, a_name, a_owner);
            END IF;
        ELSE
            outcome := 'queued';
            -- A place need not wait for the disk: whoever loses one in a crash finds out and takes a new one. A hand-over on
            -- the way here is confirmed by a commit that waits.
            PERFORM set_config('synchronous_commit', 'off', true);
            IF c.ticket IS NULL THEN
                UPDATE fencepost.locks AS k SET tickets = k.tickets + 1, waiters = k.waiters + 1
                WHERE k.namespace = a_namespace AND k.name = a_name
                RETURNING k.tickets INTO c.ticket;
                INSERT INTO fencepost.claims
                    (namespace, name, ticket, owner, shared, permits, ttl, since, client, in_session, seen_until, claimant)
                VALUES (a_namespace, a_name, c.ticket, a_owner, a_shared, a_permits, a_ttl, clock_timestamp(), q_client,
                        a_in_session, clock_timestamp() + interval '10 seconds', a_claimant);
            ELSE
                UPDATE fencepost.claims AS q
                SET client = q_client, missing = NULL, seen_until = clock_timestamp() + interval '10 seconds'
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.ticket = c.ticket;
            END IF;
        END IF;
        EXIT;
    END LOOP;
    SELECT w.holder, w.holder_fence, w.since_ms, w.left_ms, w.ahead INTO holder, holder_fence, since_ms, left_ms, ahead
    FROM fencepost.in_the_way(l, c.ticket) AS w;
END $$;

-- Several locks in one step: all or none, alone.
--
-- a_names  sorted, each once. Their rows are locked in this order, so that no two transactions wait for each other in a circle.

-- Takes them. Answers what `claim` answers, as JSON, and of 'busy' and 'refused' in "nth" which one it is. One fence is that of all:
-- it is above the last one of each. Nothing queues: they have no queue in common.
--
-- As with `take`, what is wanted most of all lies apart: all of them are free.
CREATE FUNCTION fencepost.take_several(
    a_namespace text, a_names text[], a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_in_session boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a_session integer := CASE WHEN a_in_session THEN a_client END;
    free      bigint;
    issued    bigint;
BEGIN
    SELECT count(*) INTO free FROM fencepost.locks AS k
    WHERE k.namespace = a_namespace AND k.name = ANY (a_names) AND k.owner IS NULL AND k.waiters = 0 AND k.readers = 0;
    IF free = cardinality(a_names) THEN
        PERFORM FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = ANY (a_names)
        ORDER BY k.name FOR NO KEY UPDATE;
        WITH last AS (
            SELECT max(k.fence) AS fence FROM fencepost.locks AS k
            WHERE k.namespace = a_namespace AND k.name = ANY (a_names) AND k.fence >= 0
              AND k.owner IS NULL AND k.waiters = 0 AND k.readers = 0
            HAVING count(*) = cardinality(a_names)
        ), taken AS (
            UPDATE fencepost.locks AS k
            SET fence = greatest(last.fence, s.epoch, s.floor) + 1, since = clock_timestamp(), owner = a_owner, ttl = a_ttl,
                expires_at = fencepost.end_of(a_ttl, a_session), session = a_session, client = a_client,
                claimant = a_claimant, permits = NULL
            FROM fencepost.state AS s, last
            WHERE k.namespace = a_namespace AND k.name = ANY (a_names) AND s.started = pg_postmaster_start_time()
            RETURNING k.fence
        )
        SELECT max(fence) INTO issued FROM taken;
        IF issued IS NOT NULL THEN
            RETURN '{"outcome":"granted","issued":' || issued || '}';
        END IF;
    END IF;
    RETURN fencepost.claim_several(a_namespace, a_names, a_owner, a_ttl, a_claimant, a_client, a_in_session);
END $$;

-- The same, whoever holds or waits: one claim after the other, and all of them undone with the first that is not granted.
CREATE FUNCTION fencepost.claim_several(
    a_namespace text, a_names text[], a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_in_session boolean
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    l      fencepost.locks;
    answer record;
    fences bigint[] := '{}';
    nth    integer;
BEGIN
    FOR i IN 1 .. cardinality(a_names) LOOP
        SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_names[i];
        IF fencepost.is_plainly_busy(l, a_owner) THEN
            nth := i;
            SELECT 'busy' AS outcome, w.* INTO answer FROM fencepost.in_the_way(l, NULL) AS w;
            EXIT;
        END IF;
    END LOOP;
    IF nth IS NULL THEN
        BEGIN
            FOR i IN 1 .. cardinality(a_names) LOOP
                SELECT * INTO answer FROM fencepost.claim(
                    a_namespace, a_names[i], a_owner, a_ttl, a_claimant, a_client, 'once', false, a_in_session,
                    false, NULL, NULL);
                IF answer.outcome <> 'granted' THEN
                    nth := i;
                    RAISE SQLSTATE 'FP003'; -- not all: none
                END IF;
                fences := fences || answer.issued;
            END LOOP;
        EXCEPTION WHEN SQLSTATE 'FP003' THEN
            NULL; -- variables keep what they have
        END;
    END IF;
    IF nth IS NULL THEN
        UPDATE fencepost.locks AS k SET fence = (SELECT max(fence) FROM unnest(fences) AS fence)
        WHERE k.namespace = a_namespace AND k.name = ANY (a_names)
          AND k.fence < (SELECT max(fence) FROM unnest(fences) AS fence);
        RETURN jsonb_build_object('outcome', 'granted', 'issued', (SELECT max(fence) FROM unnest(fences) AS fence));
    END IF;
    -- What is left of an earlier grant to this owner, some of which was lost.
    IF EXISTS (SELECT FROM fencepost.locks AS k
               WHERE k.namespace = a_namespace AND k.name = ANY (a_names) AND k.owner = a_owner) THEN
        PERFORM fencepost.release_several(a_namespace, a_names, a_owner);
    END IF;
    RETURN to_jsonb(answer) || jsonb_build_object('nth', nth);
END $$;

-- Gives them back. Answers as `release` does, for the first that was not ours any more.
CREATE FUNCTION fencepost.release_several(a_namespace text, a_names text[], a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text := 'released';
    one    text;
BEGIN
    FOR i IN 1 .. cardinality(a_names) LOOP
        one := fencepost.release(a_namespace, a_names[i], a_owner);
        IF answer = 'released' THEN
            answer := one;
        END IF;
    END LOOP;
    RETURN answer;
END $$;

-- Extends grants, each on condition of its owner and of not having expired: a renewal never creates, and one that would
-- have to wait for a row is left out, so that a row which somebody else has locked does not stop the others (R1).
--
-- A session's grants are looked at only: whose session has ended, or is another one by now, has lost them. It is asked on
-- the session's own connection, so that the answer also shows that this lives.
--
-- Answers for each: 'renewed', 'expired', 'ended' (the session that it lived by), 'taken' (another holds), 'deleted' (nobody
-- does), 'locked' (ask again).
CREATE FUNCTION fencepost.renew(
    a_namespace text, a_names text[], a_owners bytea[], a_ttls bigint[], a_client integer, a_in_session boolean
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    answers text[] := '{}';
    answer  text;
    l       fencepost.locks;
    c       fencepost.claims;
BEGIN
    FOR i IN 1 .. cardinality(a_names) LOOP
        IF a_in_session THEN
            SELECT * INTO l FROM fencepost.locks AS k
            WHERE k.namespace = a_namespace AND k.name = a_names[i] AND k.owner = a_owners[i];
            SELECT * INTO c FROM fencepost.claims AS q
            WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.owner = a_owners[i] AND q.holds;
            IF l.session = a_client AND fencepost.is_held_alone(l) OR c.client = a_client AND fencepost.is_live(c) THEN
                answers := answers || 'renewed'::text;
                CONTINUE;
            ELSIF l.name IS NOT NULL OR c.name IS NOT NULL THEN
                answers := answers || 'ended'::text;
                CONTINUE;
            END IF;
        END IF;
        SELECT * INTO l FROM fencepost.locks AS k
        WHERE k.namespace = a_namespace AND k.name = a_names[i] AND k.owner = a_owners[i]
        FOR NO KEY UPDATE SKIP LOCKED;
        IF l.expires_at > clock_timestamp() THEN
            UPDATE fencepost.locks AS k
            SET ttl = a_ttls[i], client = a_client,
                expires_at = clock_timestamp() + a_ttls[i] * interval '1 millisecond'
            WHERE k.namespace = a_namespace AND k.name = a_names[i] AND k.owner = a_owners[i];
            answer := 'renewed';
        ELSIF FOUND THEN
            answer := 'expired';
        ELSE
            answer := fencepost.renew_shared(a_namespace, a_names[i], a_owners[i], a_ttls[i], a_client);
        END IF;
        answers := answers || coalesce(answer, 'deleted');
    END LOOP;
    RETURN answers;
END $$;

-- The same for one grant that is held together with others, or not at all.
CREATE FUNCTION fencepost.renew_shared(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_client integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    SELECT * INTO c FROM fencepost.claims AS q
    WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner AND q.holds
    FOR NO KEY UPDATE SKIP LOCKED;
    IF fencepost.is_live(c) THEN
        UPDATE fencepost.claims AS q
        SET ttl = a_ttl, client = a_client, expires_at = clock_timestamp() + a_ttl * interval '1 millisecond'
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.ticket = c.ticket;
        RETURN 'renewed';
    ELSIF c.name IS NOT NULL THEN
        RETURN 'expired';
    END IF;
    RETURN (
        SELECT CASE
            WHEN k.owner = a_owner OR EXISTS (
                SELECT FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner AND q.holds
            ) THEN 'locked'
            WHEN fencepost.is_held(k) THEN 'taken'
            ELSE 'deleted'
        END
        FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_name
    );
END $$;

-- Makes a writer a reader with the same fence, and lets the readers that wait next in. Answers as `renew`.
CREATE FUNCTION fencepost.downgrade(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_client integer, a_in_session boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
BEGIN
    l := fencepost.locked_row(a_namespace, a_name);
    IF l.owner = a_owner AND fencepost.is_held_alone(l) AND (NOT a_in_session OR l.session = a_client) THEN
        INSERT INTO fencepost.claims
            (namespace, name, ticket, owner, holds, shared, fence, ttl, expires_at, since, client, in_session, seen_until,
             claimant)
        VALUES (a_namespace, a_name, l.tickets + 1, a_owner, true, true, l.fence, a_ttl,
                fencepost.end_of(a_ttl, l.session), l.since, a_client, a_in_session, clock_timestamp(), l.claimant);
        UPDATE fencepost.locks AS k
        SET owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL,
            tickets = k.tickets + 1, readers = k.readers + 1
        WHERE k.namespace = a_namespace AND k.name = a_name
        RETURNING k.* INTO l;
        PERFORM fencepost.serve(l);
        RETURN 'renewed';
    END IF;
    RETURN (fencepost.renew(a_namespace, ARRAY[a_name], ARRAY[a_owner], ARRAY[a_ttl], a_client, a_in_session))[1];
END $$;

-- Sets the limit of a semaphore that is in use. Who waits for more than that is told to ask again.
--
-- outcome   'resized', with the former limit; 'free' (nobody uses it, nothing was changed), 'lock' (it is in use as one)
CREATE FUNCTION fencepost.resize(a_namespace text, a_name text, a_of integer, OUT outcome text, OUT former integer)
LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
    c fencepost.claims;
BEGIN
    l := fencepost.locked_row(a_namespace, a_name);
    outcome := CASE
        WHEN l.name IS NULL OR l.waiters = 0 AND NOT fencepost.is_held(l) THEN 'free'
        WHEN l.permits IS NULL THEN 'lock'
        ELSE 'resized'
    END;
    IF outcome <> 'resized' THEN
        RETURN;
    END IF;
    former := l.permits;
    FOR c IN
        DELETE FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND NOT q.holds AND q.permits > a_of
        RETURNING q.*
    LOOP
        IF c.client IS NOT NULL THEN
            PERFORM pg_notify('fencepost_' || c.client, 'g' || encode(substr(c.owner, 1, 8), 'hex'));
        END IF;
    END LOOP;
    UPDATE fencepost.locks AS k
    SET permits = a_of, waiters = (SELECT count(*) FROM fencepost.claims AS q
                                   WHERE q.namespace = a_namespace AND q.name = a_name AND NOT q.holds)
    WHERE k.namespace = a_namespace AND k.name = a_name
    RETURNING k.* INTO l;
    PERFORM fencepost.serve(l);
END $$;

-- Gives back what is recorded under an owner, the lock or the place in its queue, and hands the lock on.
--
-- Answers 'released', 'expired' (nothing of it was there), 'other' (another holds).
--
-- A lock that nobody waits for is one update; see `take`.
CREATE FUNCTION fencepost.release(a_namespace text, a_name text, a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.locks AS k
    SET owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL
    WHERE k.namespace = a_namespace AND k.name = a_name AND k.owner = a_owner AND k.waiters = 0
      AND k.expires_at > clock_timestamp();
    IF FOUND THEN
        RETURN 'released';
    END IF;
    RETURN fencepost.give_back(a_namespace, a_name, a_owner);
END $$;

-- The same, whoever holds or waits.
CREATE FUNCTION fencepost.give_back(a_namespace text, a_name text, a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l    fencepost.locks;
    c    fencepost.claims;
    held boolean;
BEGIN
    l := fencepost.locked_row(a_namespace, a_name);
    IF l.name IS NULL THEN
        RETURN 'expired';
    END IF;
    held := fencepost.is_held(l);
    IF l.owner = a_owner THEN
        PERFORM fencepost.pass_on(l);
        RETURN CASE WHEN held THEN 'released' ELSE 'expired' END;
    END IF;
    DELETE FROM fencepost.claims AS q
    WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner RETURNING q.* INTO c;
    IF c.ticket IS NOT NULL THEN
        UPDATE fencepost.locks AS k
        SET waiters = greatest(k.waiters - (NOT c.holds)::integer, 0), readers = greatest(k.readers - c.holds::integer, 0)
        WHERE k.namespace = a_namespace AND k.name = a_name
        RETURNING k.* INTO l;
        PERFORM fencepost.serve(l); -- also those who waited only for one that waited
        RETURN 'released';
    END IF;
    RETURN CASE WHEN held THEN 'other' ELSE 'expired' END;
END $$;

-- Hands a lock on whose leases have run out, or one of them. Answers for how many milliseconds it is held yet; null when
-- nobody holds it.
CREATE FUNCTION fencepost.settle(a_namespace text, a_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
BEGIN
    SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_name;
    IF l.waiters > 0 AND NOT fencepost.is_held_alone(l)
        OR l.session IS NULL AND l.expires_at > clock_timestamp() + l.ttl * interval '1 millisecond'
    THEN
        l := fencepost.locked_row(a_namespace, a_name);
        IF l.owner IS NULL THEN
            l := fencepost.serve(l);
        ELSIF NOT fencepost.is_held_alone(l) THEN
            l := fencepost.pass_on(l);
        END IF;
    END IF;
    RETURN fencepost.left_of(l);
END $$;

-- Takes a lock from all who hold it and tells them. Waiters keep their places, and the first ones get it.
--
-- outcome   'broken', with the first holder; 'free' (nobody held it), 'fence' (held with another fence than the one named)
CREATE FUNCTION fencepost.force(
    a_namespace text, a_name text, a_fence bigint,
    OUT outcome text, OUT holder text, OUT holder_fence bigint, OUT since_ms bigint, OUT left_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
    c fencepost.claims;
BEGIN
    l := fencepost.locked_row(a_namespace, a_name);
    IF l.name IS NULL OR NOT fencepost.is_held(l) THEN
        outcome := 'free';
        RETURN;
    END IF;
    SELECT w.holder, w.holder_fence, w.since_ms, w.left_ms INTO holder, holder_fence, since_ms, left_ms
    FROM fencepost.in_the_way(l, NULL) AS w;
    IF a_fence IS NOT NULL AND a_fence <> holder_fence THEN
        outcome := 'fence';
        RETURN;
    END IF;
    outcome := 'broken';
    PERFORM fencepost.tell_loss(l.client, l.owner);
    PERFORM fencepost.evict(a_namespace, a_name);
    UPDATE fencepost.locks AS k SET readers = 0 WHERE k.namespace = a_namespace AND k.name = a_name AND k.readers > 0;
    l.readers := 0;
    PERFORM fencepost.pass_on(l);
END $$;

-- Says that waiters are alive, and where they hear of their turn. In the order in which others lock these rows.
CREATE FUNCTION fencepost.announce(a_namespace text, a_names text[], a_owners bytea[], a_client integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    FOR c IN
        SELECT q.* FROM fencepost.claims AS q JOIN unnest(a_names, a_owners) AS w (name, owner) USING (name, owner)
        WHERE q.namespace = a_namespace ORDER BY q.name, q.ticket FOR NO KEY UPDATE OF q
    LOOP
        UPDATE fencepost.claims AS q
        SET client = a_client, missing = NULL, seen_until = clock_timestamp() + interval '10 seconds'
        WHERE q.namespace = a_namespace AND q.name = c.name AND q.ticket = c.ticket;
    END LOOP;
END $$;

-- What became of claims, without a write: 'held', 'queued' (behind somebody who holds), 'free' (queued, and nobody holds, or
-- one of several holds no more), 'taken' (another holds), 'gone' (nobody does); and for how long their locks are held yet.
CREATE FUNCTION fencepost.look(
    a_namespace text, a_names text[], a_owners bytea[], OUT place bigint, OUT became text, OUT left_ms bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    l    fencepost.locks;
    held boolean;
BEGIN
    FOR i IN 1 .. cardinality(a_names) LOOP
        SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_names[i];
        place := i;
        held := fencepost.is_held(l);
        left_ms := fencepost.left_of(l);
        became := CASE
            WHEN l.owner = a_owners[i] AND held THEN 'held'
            WHEN EXISTS (SELECT FROM fencepost.claims AS q
                         WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.owner = a_owners[i]
                           AND fencepost.is_live(q)) THEN 'held'
            WHEN EXISTS (SELECT FROM fencepost.claims AS q
                         WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.owner = a_owners[i])
                THEN CASE WHEN held AND NOT EXISTS (
                    SELECT FROM fencepost.claims AS q
                    WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.holds AND NOT fencepost.is_live(q)
                ) THEN 'queued' ELSE 'free' END
            WHEN held THEN 'taken'
            ELSE 'gone'
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Forgets names that nobody has locked for so long, and cells that ended that long ago. Fences and versions go on rising all
-- the same, from the floor. Answers how many it forgot.
CREATE FUNCTION fencepost.tidy(a_namespace text, unused_for interval) RETURNS bigint LANGUAGE sql AS $$
    WITH names AS (
        DELETE FROM fencepost.locks AS k
        WHERE k.namespace = a_namespace AND k.owner IS NULL AND k.waiters = 0 AND k.readers = 0
          AND coalesce(k.since, '-infinity') < clock_timestamp() - unused_for
        RETURNING 1
    ), ended AS (
        DELETE FROM fencepost.cells AS c
        WHERE c.namespace = a_namespace AND c.expires_at < clock_timestamp() - unused_for
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM names) + (SELECT count(*) FROM ended)
$$;

-- Who holds and who waits: holders first, then waiters, first come first.
--
-- a_name  one name, or null for all
CREATE FUNCTION fencepost.inspect(
    a_namespace text, a_name text,
    OUT name text, OUT waits boolean, OUT owner bytea, OUT claimant text, OUT fence bigint, OUT since_ms bigint,
    OUT left_ms bigint, OUT shared boolean, OUT permits integer, OUT "of" integer, OUT slots integer[]
) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT name, waits, owner, claimant, fence, since_ms, left_ms, shared, permits, of, slots FROM (
        SELECT l.name, false AS waits, l.owner, l.claimant, l.fence, 0::bigint AS ticket,
               (extract(epoch FROM l.since) * 1000)::bigint AS since_ms,
               CASE WHEN l.session IS NULL THEN
                   (extract(epoch FROM least(l.expires_at, clock_timestamp() + l.ttl * interval '1 millisecond') - clock_timestamp()) * 1000)::bigint
               END AS left_ms, false AS shared, NULL::integer AS permits, NULL::integer AS of, NULL::integer[] AS slots
        FROM fencepost.locks AS l
        WHERE l.namespace = a_namespace AND (a_name IS NULL OR l.name = a_name) AND fencepost.is_held_alone(l)
        UNION ALL
        SELECT c.name, NOT c.holds, c.owner, c.claimant, c.fence, c.ticket, (extract(epoch FROM c.since) * 1000)::bigint,
               CASE WHEN NOT c.in_session THEN
                   (extract(epoch FROM least(c.expires_at, clock_timestamp() + c.ttl * interval '1 millisecond') - clock_timestamp()) * 1000)::bigint
               END, c.shared, c.permits, l.permits, c.slots
        FROM fencepost.claims AS c JOIN fencepost.locks AS l USING (namespace, name)
        WHERE c.namespace = a_namespace AND (a_name IS NULL OR c.name = a_name) AND (NOT c.holds OR fencepost.is_live(c))
    ) AS everybody
    ORDER BY name COLLATE "C", waits, ticket
$$;

-- Cells: values that change on condition of their version.
--
-- A cell that was removed, or has expired, keeps its row, so that no version comes twice. `tidy` deletes rows, and then the
-- version goes into the floor, as a lock's fence does.

-- Changes a cell, and tells those who wait for it.
--
-- a_by        this change's own value, by which a repeat is known
-- a_expected  the version that must be there, or null for no cell
-- a_value     what shall be there, or null to remove it
-- a_ttl       milliseconds until it expires, or null
-- a_mark      tells the cell in messages
-- done        whether it is as wanted now, with the version of it; else the rest is what is there instead, if anything
CREATE FUNCTION fencepost.change_cell(
    a_namespace text, a_key text, a_by bytea, a_expected bigint, a_value bytea, a_ttl bigint, a_mark text,
    OUT done boolean, OUT version bigint, OUT value bytea, OUT writer bytea, OUT left_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    c     fencepost.cells;
    there boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM fencepost.state WHERE started = pg_postmaster_start_time()) THEN
        PERFORM fencepost.find_epoch();
    END IF;
    LOOP
        SELECT * INTO c FROM fencepost.cells AS k WHERE k.namespace = a_namespace AND k.key = a_key FOR NO KEY UPDATE;
        EXIT WHEN FOUND OR a_expected IS NOT NULL;
        -- Without a version yet. It gets one below, by a statement that sees the floor left by a deletion just before.
        INSERT INTO fencepost.cells (namespace, key, version, writer) VALUES (a_namespace, a_key, 0, a_by)
        ON CONFLICT DO NOTHING;
    END LOOP;
    there := fencepost.is_there(c);
    IF there AND c.writer = a_by THEN
        done := true;
        version := c.version;
        RETURN;
    END IF;
    IF (CASE WHEN there THEN c.version END) IS DISTINCT FROM a_expected THEN
        done := false;
        IF there THEN
            version := c.version;
            value := c.value;
            writer := c.writer;
            left_ms := fencepost.left_of(c);
        END IF;
        RETURN;
    END IF;
    UPDATE fencepost.cells AS k
    SET value = a_value, writer = a_by,
        version = CASE WHEN a_value IS NULL THEN k.version ELSE greatest(k.version, s.epoch, s.floor) + 1 END,
        expires_at = clock_timestamp() + CASE WHEN a_value IS NULL THEN 0 ELSE a_ttl END * interval '1 millisecond'
    FROM fencepost.state AS s
    WHERE k.namespace = a_namespace AND k.key = a_key
    RETURNING k.version INTO version;
    done := true;
    -- Whoever waits for a cell has this lock for as long as it listens.
    IF NOT pg_try_advisory_xact_lock('fencepost.locks'::regclass::integer, 0) THEN
        PERFORM pg_notify('fencepost_cells', 'c' || a_mark);
    END IF;
END $$;

CREATE FUNCTION fencepost.is_there(c fencepost.cells) RETURNS boolean LANGUAGE sql AS $$
    SELECT c.value IS NOT NULL AND coalesce(c.expires_at > clock_timestamp(), true)
$$;

-- For how many milliseconds a cell lasts yet, and never less; null for one that does not expire.
CREATE FUNCTION fencepost.left_of(c fencepost.cells) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN isfinite(c.expires_at) THEN
        ceil(greatest(extract(epoch FROM c.expires_at - clock_timestamp()) * 1000, 0))::bigint
    END
$$;

-- A cell, if it is there.
CREATE FUNCTION fencepost.look_at_cell(
    a_namespace text, a_key text, OUT value bytea, OUT version bigint, OUT writer bytea, OUT left_ms bigint
) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT c.value, c.version, c.writer, fencepost.left_of(c) FROM fencepost.cells AS c
    WHERE c.namespace = a_namespace AND c.key = a_key AND fencepost.is_there(c)
$$;

CREATE FUNCTION fencepost.leave_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.state SET floor = OLD.version WHERE floor < OLD.version;
    RETURN NULL;
END $$;

CREATE TRIGGER leave_version AFTER DELETE ON fencepost.cells
    FOR EACH ROW EXECUTE FUNCTION fencepost.leave_version();

CREATE TRIGGER keep_versions BEFORE TRUNCATE ON fencepost.cells EXECUTE FUNCTION fencepost.keep_fences();

-- What the functions mean is said by the server's own catalog, whoever calls them. A role that may create something in a schema
-- of the caller's search_path, such as `public`, could else make an operator or a function that fits an expression here better
-- than the server's own, and it would run in our place with the caller's rights.
--
-- Those that are called from outside. What they call in turn goes by the same path.
ALTER FUNCTION fencepost.take SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.take_several SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.claim SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.release SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.release_several SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.renew SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.downgrade SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.settle SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.announce SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.look SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.inspect SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.force SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.resize SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.look_at_cell SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.change_cell SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.session_number SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.tidy SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.leave_fence SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.leave_version SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.keep_fences SET search_path = pg_catalog, pg_temp;

-- A role that uses locks needs
--     GRANT USAGE ON SCHEMA fencepost TO role;
--     GRANT SELECT, UPDATE ON fencepost.state TO role;
--     GRANT SELECT, INSERT, UPDATE ON fencepost.locks, fencepost.cells TO role;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON fencepost.claims TO role;
-- and one that only looks at them (`ls`, `who`)
--     GRANT USAGE ON SCHEMA fencepost TO role;
--     GRANT SELECT ON fencepost.state, fencepost.locks, fencepost.claims TO role;
