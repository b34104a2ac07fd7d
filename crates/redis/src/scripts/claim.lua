-- Takes the lock, or a place in its queue. Called after a plain SET NX found the key taken.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 'once' or 'queue', 4 mode, 5 channel of the client, 6 JSON
-- Replies  {'granted'}                              held for the TTL from now
--          {'busy', value, ms left, waiters}        nothing is left behind
--          {'queued', value, ms left, waiters ahead}
-- Asking again with the same owner value answers as before (a claim of unknown outcome is cleared up so).

local owner, ttl, patience, mode, channel, json = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local lock, foreign = read_lock()
if foreign then return foreign end

if lock and lock.held and lock.owner == owner then
  write_lock(owner, ttl, ttl, lock.since, json)
  return {'granted'}
end

if not (lock and lock.held) then
  if queue_exists() and patience == 'queue' then
    enqueue(owner, mode, ttl, channel, json)
  end
  local next, waiter = first_in_reach(owner)
  if not next or next == owner then
    if next then leave_queue(owner, waiter) end
    write_lock(owner, ttl, ttl, now, json)
    return {'granted'}
  end
  hand_to(next, waiter)
  lock = read_lock()
end

if patience == 'once' then
  return {'busy', lock.value, lock.left, redis.call('ZCARD', QUEUE)}
end
enqueue(owner, mode, ttl, channel, json)
write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
return {'queued', lock.value, lock.left, redis.call('ZRANK', QUEUE, owner)}
