-- Several locks in one step: all or none, alone.
--
-- a_names  sorted, each once. Their rows are locked in this order, so that no two transactions wait for each other in a circle.

-- Takes them. Answers what `claim` answers, as JSON, and of 'busy' and 'refused' in "nth" which one it is. One fence is that of all:
-- it is above the last one of each. Nothing queues: they have no queue in common.
--
-- As with `take`, what is wanted most of all lies apart: all of them are free.
CREATE OR REPLACE FUNCTION fencepost.take_several(
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
CREATE OR REPLACE FUNCTION fencepost.claim_several(
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
CREATE OR REPLACE FUNCTION fencepost.release_several(a_namespace text, a_names text[], a_owner bytea) RETURNS text LANGUAGE plpgsql AS $$
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
