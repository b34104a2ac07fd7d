-- Takes a lock, confirms one that was handed over, or takes a place in its queue. One transaction of one statement.
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
        client = a_client, claimant = a_claimant
    FROM fencepost.state AS s
    WHERE k.namespace = a_namespace AND k.name = a_name AND k.fence >= 0 AND s.started = pg_postmaster_start_time()
      AND (k.owner IS NULL AND k.waiters = 0 AND k.readers = 0
           OR k.owner = a_owner AND k.expires_at > clock_timestamp() AND k.session IS NOT DISTINCT FROM a_session)
    RETURNING k.fence INTO issued;
    IF issued IS NOT NULL THEN
        RETURN '{"outcome":"granted","issued":' || issued || '}';
    END IF;
    RETURN (SELECT to_json(answer) FROM fencepost.claim(
        a_namespace, a_name, a_owner, a_ttl, a_claimant, a_client, a_patience, a_hears, a_in_session) AS answer);
END $$;

-- The same, whoever holds or waits.
--
-- outcome   'granted', 'busy', 'queued'; with the last two the rest tells about the holder
CREATE FUNCTION fencepost.claim(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_patience text,
    a_hears boolean, a_in_session boolean,
    OUT outcome text, OUT issued bigint,
    OUT holder text, OUT holder_fence bigint, OUT since_ms bigint, OUT left_ms bigint, OUT ahead bigint
) LANGUAGE plpgsql AS $$
DECLARE
    l fencepost.locks;
    c fencepost.claims;
    s_client integer := CASE WHEN a_in_session THEN a_client END;
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
        IF a_patience = 'once' AND l.owner <> a_owner AND fencepost.is_held(l)
            AND (l.session IS NOT NULL OR l.expires_at <= clock_timestamp() + l.ttl * interval '1 millisecond')
            AND NOT EXISTS (SELECT FROM fencepost.claims AS q
                            WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner)
        THEN
            outcome := 'busy';
            EXIT;
        END IF;
        l := fencepost.locked_row(a_namespace, a_name);
        CONTINUE WHEN l.name IS NULL;

        IF l.owner = a_owner AND fencepost.is_held(l) AND l.session IS NOT DISTINCT FROM s_client THEN
            UPDATE fencepost.locks AS k
            SET ttl = a_ttl, expires_at = fencepost.end_of(a_ttl, s_client), client = a_client
            WHERE k.namespace = a_namespace AND k.name = a_name;
            outcome := 'granted';
            issued := l.fence;
            RETURN;
        END IF;
        IF l.owner = a_owner OR NOT fencepost.is_held(l) THEN
            IF l.waiters > 0 THEN
                c := fencepost.first_in_reach(l, a_owner);
            END IF;
            IF c.owner <> a_owner THEN
                l := fencepost.hand_to(c);
            ELSE
                DELETE FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
                UPDATE fencepost.locks AS k
                SET fence = greatest(k.fence, s.epoch, s.floor) + 1, owner = a_owner, ttl = a_ttl,
                    expires_at = fencepost.end_of(a_ttl, s_client), session = s_client, since = clock_timestamp(),
                    client = a_client, claimant = a_claimant,
                    waiters = greatest(k.waiters - CASE WHEN c.owner IS NULL THEN 0 ELSE 1 END, 0)
                FROM fencepost.state AS s
                WHERE k.namespace = a_namespace AND k.name = a_name
                RETURNING k.fence INTO issued;
                outcome := 'granted';
                RETURN;
            END IF;
        END IF;

        SELECT * INTO c FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
        IF a_patience = 'once' THEN
            outcome := 'busy';
            IF c.ticket IS NOT NULL THEN
                DELETE FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.ticket = c.ticket;
                UPDATE fencepost.locks AS k SET waiters = greatest(k.waiters - 1, 0)
                WHERE k.namespace = a_namespace AND k.name = a_name;
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
                    (namespace, name, ticket, owner, ttl, since, client, in_session, seen_until, claimant)
                VALUES (a_namespace, a_name, c.ticket, a_owner, a_ttl, clock_timestamp(), q_client, a_in_session,
                        clock_timestamp() + interval '10 seconds', a_claimant);
            ELSE
                UPDATE fencepost.claims AS q
                SET client = q_client, missing = NULL, seen_until = clock_timestamp() + interval '10 seconds'
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.ticket = c.ticket;
            END IF;
        END IF;
        EXIT;
    END LOOP;
    holder := l.claimant;
    holder_fence := l.fence;
    since_ms := extract(epoch FROM l.since) * 1000;
    left_ms := fencepost.left_of(l);
    SELECT count(*) INTO ahead FROM (
        SELECT FROM fencepost.claims AS q
        WHERE q.namespace = a_namespace AND q.name = a_name AND NOT q.holds
          AND q.ticket < coalesce(c.ticket, 9223372036854775807)
        LIMIT 1000
    ) AS before;
END $$;
