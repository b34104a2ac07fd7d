-- Tries to take an advisory lock until the transaction ends, without waiting.
--
-- $1  the key, 64 bits
--
-- Answers 'taken', 'busy', 'ours' (this session has it already: it would count twice), 'standby' (it would exclude nobody).
--
-- In full, since the search_path is the user's: nobody else's function may come in.
SELECT CASE
    WHEN pg_catalog.pg_is_in_recovery() THEN 'standby'
    WHEN EXISTS (
        SELECT FROM pg_catalog.pg_locks AS l
        WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()
          AND l.objsubid OPERATOR(pg_catalog.=) 1
          AND ((l.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) l.objid::bigint)
              OPERATOR(pg_catalog.=) $1::bigint
    ) THEN 'ours'
    WHEN pg_catalog.pg_try_advisory_xact_lock($1::bigint) THEN 'taken'
    ELSE 'busy'
END
