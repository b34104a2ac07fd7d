-- Extends grants, each on condition of its owner and of not having expired: a renewal never creates, and one that would
-- have to wait for a row is left out, so that a row which somebody else has locked does not stop the others (R1).
--
-- A session's grants are looked at only: whose session has ended, or is another one by now, has lost them. It is asked on
-- the session's own connection, so that the answer also shows that this lives.
--
-- Answers for each: 'renewed', 'expired', 'ended' (the session that it lived by), 'taken' (another holds), 'deleted' (nobody
-- does), 'locked' (ask again).
CREATE OR REPLACE FUNCTION fencepost.renew(
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
CREATE OR REPLACE FUNCTION fencepost.renew_shared(
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
CREATE OR REPLACE FUNCTION fencepost.downgrade(
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
            tickets = k.tickets + 1, readers = k.readers + 1, looked_at = clock_timestamp(),
            readers_until = fencepost.bound(k, a_in_session, fencepost.end_of(a_ttl, l.session))
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
CREATE OR REPLACE FUNCTION fencepost.resize(a_namespace text, a_name text, a_of integer, OUT outcome text, OUT former integer)
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
-- A lock that nobody waits for is one update, written in full; see `take`.
CREATE OR REPLACE FUNCTION fencepost.release(a_namespace text, a_name text, a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.locks AS k
    SET owner = NULL, ttl = NULL, expires_at = NULL, client = NULL, session = NULL, claimant = NULL
    WHERE k.namespace OPERATOR(pg_catalog.=) a_namespace AND k.name OPERATOR(pg_catalog.=) a_name
      AND k.owner OPERATOR(pg_catalog.=) a_owner AND k.waiters OPERATOR(pg_catalog.=) 0
      AND k.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
    IF FOUND THEN
        RETURN 'released';
    END IF;
    RETURN fencepost.give_back(a_namespace, a_name, a_owner);
END $$;

-- The same, whoever holds or waits.
CREATE OR REPLACE FUNCTION fencepost.give_back(a_namespace text, a_name text, a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l    fencepost.locks;
    c    fencepost.claims;
    held boolean;
BEGIN
    l := fencepost.locked_row(a_namespace, a_name);
    IF l.name IS NULL THEN
        RETURN 'expired';
    END IF;
    IF l.owner = a_owner THEN
        held := fencepost.is_held_alone(l);
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
        IF l.waiters > 0 THEN
            PERFORM fencepost.serve(l); -- also those who waited only for one that waited
        END IF;
        RETURN 'released';
    END IF;
    RETURN CASE WHEN fencepost.is_held(l) THEN 'other' ELSE 'expired' END;
END $$;

-- Hands a lock on whose leases have run out, or one of them. Answers for how many milliseconds it is held yet; null when
-- nobody holds it.
CREATE OR REPLACE FUNCTION fencepost.settle(a_namespace text, a_name text) RETURNS bigint LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE FUNCTION fencepost.force(
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
CREATE OR REPLACE FUNCTION fencepost.announce(a_namespace text, a_names text[], a_owners bytea[], a_client integer) RETURNS void
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
CREATE OR REPLACE FUNCTION fencepost.look(
    a_namespace text, a_names text[], a_owners bytea[], OUT place bigint, OUT became text, OUT left_ms bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    l     fencepost.locks;
    held  boolean;
    ended boolean;
BEGIN
    FOR i IN 1 .. cardinality(a_names) LOOP
        place := i;
        IF i = 1 OR a_names[i] <> a_names[i - 1] THEN -- else a thousand who wait would look at a thousand who hold
            SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_names[i];
            held := fencepost.is_held(l);
            left_ms := fencepost.left_of(l);
            ended := l.readers > 0 AND EXISTS (
                SELECT FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.holds AND NOT fencepost.is_live(q)
            );
        END IF;
        became := CASE
            WHEN l.owner = a_owners[i] AND held THEN 'held'
            WHEN EXISTS (SELECT FROM fencepost.claims AS q
                         WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.owner = a_owners[i]
                           AND fencepost.is_live(q)) THEN 'held'
            WHEN EXISTS (SELECT FROM fencepost.claims AS q
                         WHERE q.namespace = a_namespace AND q.name = a_names[i] AND q.owner = a_owners[i])
                THEN CASE WHEN held AND NOT ended THEN 'queued' ELSE 'free' END
            WHEN held THEN 'taken'
            ELSE 'gone'
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Forgets names that nobody has locked for so long, and cells that ended that long ago. Fences and versions go on rising all
-- the same, from the floor. Answers how many it forgot.
CREATE OR REPLACE FUNCTION fencepost.tidy(a_namespace text, unused_for interval) RETURNS bigint LANGUAGE sql AS $$
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
