-- A lock's queue. Whoever calls these has the lock's row locked.

-- Whether a client's connection for messages lives: it has an advisory lock for as long as it does. That connection itself
-- would get the lock once more, and says by a setting who it is.
CREATE FUNCTION fencepost.is_alive(client integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(current_setting('fencepost_session.client', true) = client::text, false)
        OR NOT pg_try_advisory_xact_lock_shared(1717923427, client)
$$;

-- Whether somebody holds a lock: until the lease has run out, or the session has ended.
CREATE FUNCTION fencepost.is_held(l fencepost.locks) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(l.expires_at > clock_timestamp(), false) AND (l.session IS NULL OR fencepost.is_alive(l.session))
$$;

-- For how many milliseconds a lease lasts yet; null for a session, and for nobody.
CREATE FUNCTION fencepost.left_of(l fencepost.locks) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN l.session IS NULL AND l.expires_at IS NOT NULL THEN
        greatest(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000, 0)
    END
$$;

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

-- Hands a lock to a waiter for a second, in which he has to confirm (T1), and tells him. Answers the lock as it is now.
CREATE FUNCTION fencepost.hand_to(c fencepost.claims) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
BEGIN
    DELETE FROM fencepost.claims AS q WHERE q.namespace = c.namespace AND q.name = c.name AND q.ticket = c.ticket;
    UPDATE fencepost.locks AS k
    SET fence = greatest(k.fence, s.epoch, s.floor) + 1, owner = c.owner, ttl = c.ttl, client = c.client,
        session = CASE WHEN c.in_session THEN c.client END,
        expires_at = clock_timestamp() + least(c.ttl, 1000) * interval '1 millisecond',
        since = clock_timestamp(), claimant = c.claimant, waiters = greatest(k.waiters - 1, 0)
    FROM fencepost.state AS s
    WHERE k.namespace = c.namespace AND k.name = c.name
    RETURNING k.* INTO l;
    IF c.client IS NOT NULL THEN
        PERFORM pg_notify('fencepost_' || c.client, 'g' || encode(substr(c.owner, 1, 8), 'hex'));
    END IF;
    RETURN l;
END $$;

-- Hands a lock that is free to the first waiter in reach, or leaves it free.
CREATE FUNCTION fencepost.pass_on(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    IF l.waiters > 0 THEN
        c := fencepost.first_in_reach(l, NULL);
    END IF;
    IF c.ticket IS NOT NULL THEN
        RETURN fencepost.hand_to(c);
    END IF;
    UPDATE fencepost.locks AS k
    SET owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL
    WHERE k.namespace = l.namespace AND k.name = l.name
    RETURNING k.* INTO l;
    RETURN l;
END $$;

-- Locks a lock's row for a change and checks it. Null when there is none.
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
    RETURN l;
END $$;
