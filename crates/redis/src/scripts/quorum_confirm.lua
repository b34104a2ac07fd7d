-- Turns a vote into a grant, on condition of the owner. Never creates a record.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 number of the round, which is kept as "held since"
-- Replies  'renewed', 'deleted' (nobody's), or 'taken' (another's, or of a later round)

local owner, ttl, round = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local lock, foreign = read_lock()
if foreign then return foreign end
if not lock or lock.owner == NOBODY then return 'deleted' end
if lock.owner ~= owner or lock.since > round then return 'taken' end
write_lock(owner, ttl, ttl, round, lock.json)
return 'renewed'
