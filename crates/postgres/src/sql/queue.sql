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
