-- What the functions mean is said by the server's own catalog, whoever calls them. A role that may create something in a schema
-- of the caller's search_path, such as `public`, could else make an operator or a function that fits an expression here better
-- than the server's own, and it would run in our place with the caller's rights.
--
-- So those that are called from outside have the path as a setting, and what they call goes by it too. `take` and `release` are
-- written in full instead: a setting is a twentieth of what a free lock costs. What they call when the lock is not free has it
-- again.
ALTER FUNCTION fencepost.take_several SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.claim SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.give_back SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.release_several SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.renew SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.downgrade SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.settle SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.announce SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.look SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.inspect SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.force SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.resize SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.look_at_cell SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.change_cell SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.session_number SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.tidy SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.leave_fence SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.leave_version SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION fencepost.keep_fences SET search_path = pg_catalog, pg_temp;
