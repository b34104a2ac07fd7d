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
-- without a variable or a column of an answer that it does not need, and without a setting: each of them costs some hundredths
-- of it. So it is written in full, like `release`: no function or operator in it is looked for in the search_path (see
-- `pinned.sql`), its types are keywords, and there is no `IN`, `IS DISTINCT FROM` or `CASE value WHEN`, which look for an operator
-- by themselves.
CREATE OR REPLACE FUNCTION fencepost.take(
    a_namespace text, a_name text, a_owner bytea, a_ttl bigint, a_claimant text, a_client integer, a_patience text,
    a_hears boolean, a_in_session boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    issued bigint;
BEGIN
    -- The row's own counter is raised, and not a sequence: nextval() would be drawn before the wait for the row, and
    -- numbers would go backwards.
    UPDATE fencepost.locks AS k
    SET fence = CASE WHEN k.owner IS NULL THEN greatest(k.fence, s.epoch, s.floor) OPERATOR(pg_catalog.+) 1 ELSE k.fence END,
        since = CASE WHEN k.owner IS NULL THEN pg_catalog.clock_timestamp() ELSE k.since END,
        owner = a_owner, ttl = a_ttl, session = CASE WHEN a_in_session THEN a_client END,
        expires_at = CASE
            WHEN a_in_session THEN 'infinity'
            ELSE pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (a_ttl OPERATOR(pg_catalog.*) interval '1 millisecond')
        END,
        client = a_client, claimant = a_claimant, permits = NULL
    FROM fencepost.state AS s
    WHERE k.namespace OPERATOR(pg_catalog.=) a_namespace AND k.name OPERATOR(pg_catalog.=) a_name
      AND k.fence OPERATOR(pg_catalog.>=) 0 AND s.started OPERATOR(pg_catalog.=) pg_catalog.pg_postmaster_start_time()
      AND (
          k.owner IS NULL AND k.waiters OPERATOR(pg_catalog.=) 0 AND k.readers OPERATOR(pg_catalog.=) 0
          OR k.owner OPERATOR(pg_catalog.=) a_owner AND k.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
          AND CASE WHEN a_in_session THEN k.session OPERATOR(pg_catalog.=) a_client ELSE k.session IS NULL END
      )
    RETURNING k.fence INTO issued;
    IF issued IS NOT NULL THEN
        RETURN '{"outcome":"granted","issued":' OPERATOR(pg_catalog.||) issued OPERATOR(pg_catalog.||) '}';
    END IF;
    RETURN (SELECT pg_catalog.to_json(answer) FROM fencepost.claim(
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
CREATE OR REPLACE FUNCTION fencepost.claim(
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
        IF a_patience = 'once' AND a_permits IS NULL THEN
            SELECT * INTO l FROM fencepost.locks AS k WHERE k.namespace = a_namespace AND k.name = a_name;
            IF fencepost.is_plainly_busy(l, a_owner)
                AND NOT EXISTS (SELECT FROM fencepost.claims AS q
                                WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner)
            THEN
                outcome := 'busy';
                EXIT;
            END IF;
        END IF;
        l := fencepost.locked_row(a_namespace, a_name);
        IF l.name IS NULL THEN
            -- Without a fence yet. It gets one in a later statement, which sees the floor that a deletion of this name has
            -- left behind just before.
            INSERT INTO fencepost.locks (namespace, name, fence) VALUES (a_namespace, a_name, 0)
            ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;

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

        wanted.ticket := c.ticket;

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
            IF a_permits IS NOT NULL THEN
                SELECT q.slots INTO slots FROM fencepost.claims AS q
                WHERE q.namespace = a_namespace AND q.name = a_name AND q.owner = a_owner;
            END IF;
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
