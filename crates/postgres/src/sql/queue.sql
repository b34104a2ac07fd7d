-- A lock's queue. Whoever calls these has the lock's row locked.
--
-- What looks into a table is PL/pgSQL, whose plans are kept: a function in SQL that does is planned anew in each transaction.
-- One in SQL without a look becomes part of the expression that calls it.

-- A number for a session, by which its grants are known. Never one that an earlier session had, whose grants would come to
-- life again; and none that a client without a session draws, which has one below 2^30.
CREATE OR REPLACE FUNCTION fencepost.session_number() RETURNS integer LANGUAGE sql AS $$
    UPDATE fencepost.state SET sessions = sessions + 1 RETURNING (1073741824 + sessions % 1073741824)::integer
$$;

-- Whether a client's connection for messages lives: it has an advisory lock for as long as it does, of the two keys that are
-- the number of this table, which nobody else's is, and the client's own. That connection itself would get the lock once
-- more, and says by a setting who it is.
CREATE OR REPLACE FUNCTION fencepost.is_alive(client integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(current_setting('fencepost_session.client', true) = client::text, false)
        OR NOT pg_try_advisory_xact_lock_shared('fencepost.locks'::regclass::integer, client)
$$;

-- Whether one that holds together with others still does.
CREATE OR REPLACE FUNCTION fencepost.is_live(c fencepost.claims) RETURNS boolean LANGUAGE sql AS $$
    SELECT c.holds AND c.expires_at > clock_timestamp() AND (NOT c.in_session OR fencepost.is_alive(c.client))
$$;

-- Whether somebody holds a lock exclusively: until the lease has run out, or the session has ended.
CREATE OR REPLACE FUNCTION fencepost.is_held_alone(l fencepost.locks) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(l.expires_at > clock_timestamp(), false) AND (l.session IS NULL OR fencepost.is_alive(l.session))
$$;

-- Whether a look at the row is enough to say that a lock is another's. Such a try writes nothing.
CREATE OR REPLACE FUNCTION fencepost.is_plainly_busy(l fencepost.locks, a_owner bytea) RETURNS boolean LANGUAGE sql AS $$
    SELECT l.owner <> a_owner AND fencepost.is_held_alone(l)
        AND (l.session IS NOT NULL OR l.expires_at <= clock_timestamp() + l.ttl * interval '1 millisecond')
$$;

-- Whether anybody holds a lock.
CREATE OR REPLACE FUNCTION fencepost.is_held(l fencepost.locks) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN fencepost.is_held_alone(l) OR l.readers > 0 AND EXISTS (
        SELECT FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND fencepost.is_live(q)
    );
END $$;

-- For how many milliseconds the first lease that ends lasts yet; null for sessions, and for nobody. Of one that lasts longer than its
-- TTL, since somebody made it endless or the clock went back: none, if it is held alone, since whoever settles it finds it so and cuts
-- it down (see `locked_row`), and whoever were told of its present end would come no earlier; else its TTL.
CREATE OR REPLACE FUNCTION fencepost.left_of(l fencepost.locks) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    ends timestamptz;
BEGIN
    IF l.readers > 0 THEN
        SELECT min(least(q.expires_at, clock_timestamp() + q.ttl * interval '1 millisecond')) INTO ends
        FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND NOT q.in_session;
    ELSIF l.session IS NULL THEN
        ends := l.expires_at;
        IF ends > clock_timestamp() + l.ttl * interval '1 millisecond' THEN
            ends := 'infinity';
        END IF;
    END IF;
    RETURN CASE
        WHEN isfinite(ends) THEN greatest(extract(epoch FROM ends - clock_timestamp()) * 1000, 0)
        WHEN ends IS NOT NULL THEN 0
    END;
END $$;

-- What is known of who is in the way: the first holder, and how many wait before a ticket, or at all, as far as a thousand.
CREATE OR REPLACE FUNCTION fencepost.in_the_way(
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
CREATE OR REPLACE FUNCTION fencepost.end_of(ttl bigint, session integer) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT CASE WHEN session IS NULL THEN clock_timestamp() + ttl * interval '1 millisecond' ELSE 'infinity' END
$$;

-- Whether a waiter would hear of its turn.
CREATE OR REPLACE FUNCTION fencepost.in_reach(c fencepost.claims) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN c.client IS NULL THEN c.seen_until > clock_timestamp() ELSE fencepost.is_alive(c.client) END
$$;

-- The first waiter in reach; `asks` is in reach by asking. Who is out of reach is passed over, and after ten seconds of
-- it removed.
CREATE OR REPLACE FUNCTION fencepost.first_in_reach(l fencepost.locks, asks bytea) RETURNS fencepost.claims LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE FUNCTION fencepost.fits(l fencepost.locks, c fencepost.claims) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF l.owner IS NOT NULL THEN
        RETURN false;
    ELSIF c.permits IS NULL THEN
        RETURN c.shared OR l.readers = 0;
    ELSIF l.readers = 0 THEN
        RETURN l.permits >= c.permits;
    END IF;
    RETURN l.permits >= c.permits + (
        SELECT coalesce(sum(q.permits), 0) FROM fencepost.claims AS q
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds
    );
END $$;

-- Grants a lock to a claim, which leaves the queue if it stood there with a ticket. Answers the lock as it is now; the grant
-- of one that holds together with others is a row of `claims`.
CREATE OR REPLACE FUNCTION fencepost.grant_to(l fencepost.locks, c fencepost.claims, until timestamptz) RETURNS fencepost.locks
LANGUAGE plpgsql AS $$
DECLARE
    left_queue integer := 0;
    slots      integer[];
BEGIN
    IF c.ticket IS NOT NULL THEN
        DELETE FROM fencepost.claims AS q WHERE q.namespace = l.namespace AND q.name = l.name AND q.ticket = c.ticket;
        left_queue := 1;
    END IF;
    IF NOT c.shared AND c.permits IS NULL THEN
        UPDATE fencepost.locks AS k
        SET fence = greatest(k.fence, s.epoch, s.floor) + 1, owner = c.owner, ttl = c.ttl, client = c.client,
            session = CASE WHEN c.in_session THEN c.client END, expires_at = until,
            since = clock_timestamp(), claimant = c.claimant, waiters = greatest(k.waiters - left_queue, 0)
        FROM fencepost.state AS s
        WHERE k.namespace = l.namespace AND k.name = l.name
        RETURNING k.* INTO l;
        RETURN l;
    END IF;
    IF c.permits IS NOT NULL THEN
        slots := fencepost.free_slots(l, c.permits);
    END IF;
    -- A reader has the fence of the last writer (F3).
    UPDATE fencepost.locks AS k
    SET fence = CASE WHEN c.shared THEN k.fence ELSE greatest(k.fence, s.epoch, s.floor) + 1 END,
        owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL,
        since = clock_timestamp(), tickets = k.tickets + 1, readers = k.readers + 1,
        looked_at = clock_timestamp(), readers_until = fencepost.bound(k, c.in_session, until),
        waiters = greatest(k.waiters - left_queue, 0)
    FROM fencepost.state AS s
    WHERE k.namespace = l.namespace AND k.name = l.name
    RETURNING k.* INTO l;
    INSERT INTO fencepost.claims
        (namespace, name, ticket, owner, holds, shared, permits, slots, fence, ttl, expires_at, since, client, in_session,
         seen_until, claimant)
    VALUES (l.namespace, l.name, l.tickets, c.owner, true, c.shared, c.permits, slots, l.fence,
            c.ttl, until, clock_timestamp(), c.client, c.in_session, clock_timestamp(), c.claimant);
    RETURN l;
END $$;

-- Before when none of those who hold together will have ended once there is one more. A session tells nobody of its end.
CREATE OR REPLACE FUNCTION fencepost.bound(l fencepost.locks, in_session boolean, until timestamptz) RETURNS timestamptz
LANGUAGE sql AS $$
    SELECT CASE
        WHEN in_session THEN '-infinity'
        WHEN l.readers > 0 THEN least(l.readers_until, until)
        ELSE until
    END
$$;

-- The lowest slots of a semaphore that nobody has. Among as many as are taken and wanted there are enough.
CREATE OR REPLACE FUNCTION fencepost.free_slots(l fencepost.locks, wanted integer) RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    taken integer[] := '{}';
BEGIN
    IF l.readers > 0 THEN
        SELECT array_agg(slot) INTO taken FROM fencepost.claims AS q, unnest(q.slots) AS slot
        WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds;
    END IF;
    RETURN ARRAY(
        SELECT generate_series(0, wanted - 1 + coalesce(cardinality(taken), 0)) EXCEPT SELECT unnest(taken)
        ORDER BY 1 LIMIT wanted
    );
END $$;

-- Hands a lock to a waiter for a second, in which he has to confirm (T1), and tells him. Answers the lock as it is now.
CREATE OR REPLACE FUNCTION fencepost.hand_to(l fencepost.locks, c fencepost.claims) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
BEGIN
    l := fencepost.grant_to(l, c, clock_timestamp() + least(c.ttl, 1000) * interval '1 millisecond');
    IF c.client IS NOT NULL THEN
        PERFORM pg_notify('fencepost_' || c.client, 'g' || encode(substr(c.owner, 1, 8), 'hex'));
    END IF;
    RETURN l;
END $$;

-- Hands a lock to the waiters in reach that can have it now, first come first: one that wants it alone, all readers before
-- the next of those, or as many as there are permits for (W2).
CREATE OR REPLACE FUNCTION fencepost.serve(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE FUNCTION fencepost.pass_on(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE FUNCTION fencepost.locked_row(a_namespace text, a_name text) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
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
    -- Between these two moments none of those who hold together can have ended: there may be a thousand to look at.
    IF l.readers > 0 AND NOT coalesce(clock_timestamp() >= l.looked_at AND clock_timestamp() < l.readers_until, false) THEN
        l := fencepost.without_the_dead(l);
    END IF;
    RETURN l;
END $$;

-- Removes those of a lock whose shared grant has ended, and finds out before when none of the others will have.
CREATE OR REPLACE FUNCTION fencepost.without_the_dead(l fencepost.locks) RETURNS fencepost.locks LANGUAGE plpgsql AS $$
DECLARE
    living integer;
    until  timestamptz;
BEGIN
    UPDATE fencepost.claims AS q SET expires_at = clock_timestamp() + q.ttl * interval '1 millisecond'
    WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND NOT q.in_session
      AND q.expires_at > clock_timestamp() + q.ttl * interval '1 millisecond';
    DELETE FROM fencepost.claims AS q
    WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds AND NOT fencepost.is_live(q);
    SELECT count(*), min(CASE WHEN q.in_session THEN '-infinity' ELSE q.expires_at END) INTO living, until
    FROM fencepost.claims AS q WHERE q.namespace = l.namespace AND q.name = l.name AND q.holds;
    IF l.readers <> living OR l.readers_until IS DISTINCT FROM until THEN
        UPDATE fencepost.locks AS k SET readers = living, looked_at = clock_timestamp(), readers_until = until
        WHERE k.namespace = l.namespace AND k.name = l.name
        RETURNING k.* INTO l;
    END IF;
    RETURN l;
END $$;
