-- Tries to take an advisory lock until the transaction ends, without waiting.
--
-- $1  the key, 64 bits
--
-- Answers 'taken', 'busy', 'ours' (this session has it already: it would count twice), 'standby' (it would exclude nobody).
SELECT CASE
    WHEN pg_is_in_recovery() THEN 'standby'
    WHEN EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1
          AND (classid::bigint << 32 | objid::bigint) = $1::bigint
    ) THEN 'ours'
    WHEN pg_try_advisory_xact_lock($1::bigint) THEN 'taken'
    ELSE 'busy'
END
