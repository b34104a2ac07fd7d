-- Who holds and who waits: holders first, then waiters, first come first.
--
-- a_name  one name, or null for all
CREATE OR REPLACE FUNCTION fencepost.inspect(
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
