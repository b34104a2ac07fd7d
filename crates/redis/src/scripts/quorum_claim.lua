-- One server's part in a lock by majority: takes the lock, or a place in its queue from which a vote can come. Called
-- after a round of plain SET NX was lost. A record of that round, or of an earlier one, is given up by it.
--
-- The queue is ordered by tickets that the waiters bring, so that it has the same order on every server; and a vote goes
-- from a later ticket to an earlier one that arrives after it. So votes that were split come together.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 'once' or 'queue', 4 mode ('S' or 'P'), 5 channel of the client, 6 JSON,
--          7 number of the round that was lost, 8 ticket
-- Replies  {'granted'}                            only 'once': held for the TTL from now
--          {'busy', value, ms left, waiters}      only 'once': nothing of this claim is left behind
--          {'vote', value, ms left, 0}            the vote is ours for so long
--          {'queued', value, ms left, waiters ahead}
-- A repetition that comes late changes nothing that a later round has confirmed.

local owner, ttl, patience, mode, channel, json = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local round, ticket = tonumber(ARGV[7]), tonumber(ARGV[8])

local lock, foreign = read_lock()
if foreign then return foreign end
if lock and lock.crowd then return redis.error_reply('FOREIGNVALUE readers or permits are no lock by majority') end
local held = lock and lock.held
local mine = held and lock.owner == owner

if patience == 'once' then
  if not held then
    local next, waiter = first_in_reach(nil)
    if next then
      hand_to(next, waiter)
      lock = read_lock()
    else
      mine = true
    end
  end
  if mine then
    write_lock(owner, ttl, ttl, round, json)
    return {'granted'}
  end
  return {'busy', lock.value, lock.left, redis.call('ZCARD', QUEUE)}
end

if mine and lock.since > round then
  return {'vote', lock.value, lock.left, 0}
end

-- Whether a vote that another has goes to this earlier ticket.
local function outranked()
  local vote = vote_in(lock)
  if not vote or ticket > vote.ticket or (ticket == vote.ticket and owner > lock.owner) then return false end
  withdraw(lock, vote)
  return true
end

local free = not held or mine or outranked()
enqueue(owner, mode, ttl, channel, json, ticket)
if free then
  hand_to(first_in_reach(owner))
  lock = read_lock()
else
  write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)  -- it outlives its lease for the queue now
end
if lock.owner == owner then
  return {'vote', lock.value, lock.left, 0}
end
return {'queued', lock.value, lock.left, redis.call('ZRANK', QUEUE, owner)}
