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
CREATE OR REPLACE FUNCTION fencepost.change_cell(
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

CREATE OR REPLACE FUNCTION fencepost.is_there(c fencepost.cells) RETURNS boolean LANGUAGE sql AS $$
    SELECT c.value IS NOT NULL AND coalesce(c.expires_at > clock_timestamp(), true)
$$;

-- For how many milliseconds a cell lasts yet, and never less; null for one that does not expire.
CREATE OR REPLACE FUNCTION fencepost.left_of(c fencepost.cells) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN isfinite(c.expires_at) THEN
        ceil(greatest(extract(epoch FROM c.expires_at - clock_timestamp()) * 1000, 0))::bigint
    END
$$;

-- A cell, if it is there.
CREATE OR REPLACE FUNCTION fencepost.look_at_cell(
    a_namespace text, a_key text, OUT value bytea, OUT version bigint, OUT writer bytea, OUT left_ms bigint
) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT c.value, c.version, c.writer, fencepost.left_of(c) FROM fencepost.cells AS c
    WHERE c.namespace = a_namespace AND c.key = a_key AND fencepost.is_there(c)
$$;

CREATE OR REPLACE FUNCTION fencepost.leave_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fencepost.state SET floor = OLD.version WHERE floor < OLD.version;
    RETURN NULL;
END $$;

