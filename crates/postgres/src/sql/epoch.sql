-- Finds the epoch again after the server changed: a restart, a promoted standby, a dump that was restored elsewhere.
--
-- A fence is an epoch in the high 23 bits and a counter in the low 40. An asynchronous standby that is promoted may lack
-- the last grants of its former primary, but it has a higher timeline, hence a higher epoch, hence higher fences. A dump
-- may be restored on a server with any timeline: the base then rises so far that a thousand promotions of the former
-- server, after the dump, stay below it.

CREATE OR REPLACE FUNCTION fencepost.find_epoch() RETURNS void LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE FUNCTION fencepost.leave_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.state SET floor = OLD.fence WHERE floor < OLD.fence;
    PERFORM fencepost.tell_loss(OLD.client, OLD.owner);
    PERFORM fencepost.evict(OLD.namespace, OLD.name);
    RETURN NULL;
END $$;

-- Tells a holder that its grant is gone.
CREATE OR REPLACE FUNCTION fencepost.tell_loss(client integer, owner bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF client IS NOT NULL AND owner IS NOT NULL THEN
        PERFORM pg_notify('fencepost_' || client, 'l' || encode(substr(owner, 1, 8), 'hex'));
    END IF;
END $$;

-- Removes those who hold a lock together with others, and tells them.
CREATE OR REPLACE FUNCTION fencepost.evict(a_namespace text, a_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c fencepost.claims;
BEGIN
    FOR c IN
        DELETE FROM fencepost.claims AS q WHERE q.namespace = a_namespace AND q.name = a_name AND q.holds RETURNING q.*
    LOOP
        PERFORM fencepost.tell_loss(c.client, c.owner);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fencepost.keep_fences() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencepost.% is not truncated: its fences or versions would start again', TG_TABLE_NAME
        USING ERRCODE = 'FP001', HINT = 'DELETE keeps them rising';
END $$;
