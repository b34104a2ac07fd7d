-- Takes the lock, or a place in its queue. What is wanted alone is asked for here only after a plain SET NX found the key
-- taken.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 'once' or 'queue', 4 mode, 5 channel of the client, 6 JSON,
--          7 what is wanted: 'x', 'r', or permits as in '2/5'
-- Replies  {'granted', slots}                       held for the TTL from now
--          {'busy', value, ms left, waiters}        nothing of this call is left behind
--          {'queued', value, ms left, waiters ahead}
--          {'unlike', limit}                        it is in use as a semaphore of that limit, or with 0 as a lock
-- Asking again with the same owner value answers as before (a claim of unknown outcome is cleared up so).

local owner, ttl, patience, mode, channel, json = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local want = want_of(ARGV[7])

local lock, foreign = read_lock()
if foreign then return foreign end

if lock and lock.held and lock.owner == owner then
  write_lock(owner, ttl, ttl, lock.since, json)
  return {'granted', ''}
end

local blocked = true
if not (lock and lock.held) or lock.crowd then
  lock, blocked = serve(lock, owner)
end
if lock and lock.held then
  local record = record_in(lock, owner)
  if record then
    extend(lock, owner, record, ttl)
    return {'granted', record:sub((record:find('\n', 82, true) or #record) + 1)}
  elseif lock.owner == owner then
    write_lock(owner, ttl, ttl, now, json)
    return {'granted', ''}
  end
end

local used = unlike(lock, want)
if used then
  local waiter = waiter_of(owner)
  if waiter then
    leave_queue(owner, waiter)
    if lock.crowd then pass_on(lock) end
  end
  return {'unlike', used}
end

if not blocked and fits(want, lock) then
  local _, slots = admit(lock, owner, want, ttl, ttl, now, json)
  return {'granted', slots}
end

local value, left = shown(lock)
if patience == 'once' then
  return {'busy', value, left, redis.call('ZCARD', QUEUE)}
end
enqueue(owner, mode, ttl, channel, json, nil, want)
if lock.crowd then
  keep_lock(0)
else
  write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
end
return {'queued', value, left, redis.call('ZRANK', QUEUE, owner)}
