-- What happens whoever deletes: fences and versions go on rising (F4).

CREATE TRIGGER leave_fence AFTER DELETE ON fencepost.locks
    FOR EACH ROW EXECUTE FUNCTION fencepost.leave_fence();

CREATE TRIGGER keep_fences BEFORE TRUNCATE ON fencepost.locks EXECUTE FUNCTION fencepost.keep_fences();

CREATE TRIGGER leave_version AFTER DELETE ON fencepost.cells
    FOR EACH ROW EXECUTE FUNCTION fencepost.leave_version();

CREATE TRIGGER keep_versions BEFORE TRUNCATE ON fencepost.cells EXECUTE FUNCTION fencepost.keep_fences();
