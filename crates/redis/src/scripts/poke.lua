-- A client's sign of life for all its waiters at one lock. Passes the lock on when its lease has ended.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 channel of the client
-- Replies  {waiters of the client in the queue, owner value of the holder or '', ms until its lease ends}

local channel = ARGV[1]

local lock, foreign = read_lock()
if foreign then return foreign end

local mine = tonumber(redis.call('HGET', WAITERS, '#' .. channel) or 0)
if mine > 0 then
  redis.call('HSET', WAITERS, '@' .. channel, string.format('%.0f', now + ALIVE_MS))
  keep_queue()
end
if not (lock and lock.held) then
  pass_on()
  lock = read_lock()
  mine = tonumber(redis.call('HGET', WAITERS, '#' .. channel) or 0)
else
  -- Keeps a queued lock as long as the queue, and marks one that came past the queue after a deletion by hand.
  write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
end
if lock and lock.held then
  return {mine, lock.owner, lock.left}
end
return {mine, '', 0}
