-- Makes a reader of the one that holds alone, without a gap, and lets in the readers that wait next.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms
-- Replies  'renewed', 'deleted' (nobody's) or 'taken' (others')
-- A repetition answers as before.

local owner, ttl = ARGV[1], tonumber(ARGV[2])

local lock, foreign = read_lock()
if foreign then return foreign end

if lock and lock.crowd then
  local record = lock.crowd == 'r' and record_in(lock, owner)
  if record then
    extend(lock, owner, record, ttl)
    return 'renewed'
  end
  return lock.held and 'taken' or 'deleted'
end
if not lock or lock.owner == NOBODY then return 'deleted' end
if lock.owner ~= owner then return 'taken' end
serve((admit(nil, owner, want_of('r'), ttl, ttl, lock.since, lock.json)))
return 'renewed'
