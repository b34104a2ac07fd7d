-- Lets a table refuse stale fences: the newest fence that each row has seen stands in a column, and no update sets it back.
-- A row that is made by an insert starts with the fence that it is given, or with 0.

ALTER TABLE :table ADD COLUMN IF NOT EXISTS :column bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION :function() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- In full, since the search_path is that of whoever updates the row: nobody else's function may come in.
    offered bigint := pg_catalog.to_jsonb(NEW) OPERATOR(pg_catalog.->>) TG_ARGV[0];
    seen    bigint := pg_catalog.to_jsonb(OLD) OPERATOR(pg_catalog.->>) TG_ARGV[0];
BEGIN
    -- A column that was there before may be without a number, which must not be a way around: then it would take any.
    IF coalesce(offered, 0) OPERATOR(pg_catalog.<) seen THEN
        RAISE EXCEPTION 'the fence % is stale: this row of % has seen %', coalesce(offered, 0), TG_TABLE_NAME, seen
            USING ERRCODE = 'FP002', DETAIL = seen::pg_catalog.text,
            HINT = 'another holds the lock by now; stop the work that it protects';
    END IF;
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS fencepost_refuse_stale_fence ON :table;
CREATE TRIGGER fencepost_refuse_stale_fence BEFORE UPDATE ON :table
    FOR EACH ROW EXECUTE FUNCTION :function(:argument);
