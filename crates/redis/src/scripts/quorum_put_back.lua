-- Puts the record of a lease back at a server that lost it. Its holder has just renewed it at a quorum of servers, so that nobody
-- else can hold it: a vote that another has here can come to nothing, and is taken back. What another has confirmed stays.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 JSON, 4 number of a round, which is kept as "held since"
-- Replies  'kept' (it is there now) or 'taken'

local owner, ttl, json, round = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local lock, foreign = read_lock()
if foreign then return foreign end
if lock and lock.crowd then return redis.error_reply('FOREIGNVALUE readers or permits are no lock by majority') end
if lock and lock.held then
  if lock.owner == owner then return 'kept' end
  local vote = vote_in(lock)
  if not vote then return 'taken' end
  withdraw(lock, vote)
end
write_lock(owner, ttl, ttl, round, json)
return 'kept'
