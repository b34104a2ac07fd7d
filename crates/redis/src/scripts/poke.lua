-- A client's sign of life for all its waiters at one lock. Lets in who waits when a lease has ended.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 channel of the client
-- Replies  {waiters of the client in the queue, who holds, ms until the next lease ends}
--          who holds: the owner value of one that holds alone, '-' for others, '' for nobody

local channel = ARGV[1]

local lock, foreign = read_lock()
if foreign then return foreign end

local function waiters_of_client()
  return tonumber(redis.call('HGET', WAITERS, '#' .. channel) or 0)
end

local mine = waiters_of_client()
if mine > 0 then
  redis.call('HSET', WAITERS, '@' .. channel, string.format('%.0f', now + ALIVE_MS))
  keep_queue()
end
if not (lock and lock.held) or lock.crowd then
  lock = pass_on(lock)
  mine = waiters_of_client()
else
  -- Keeps a queued lock as long as the queue, and marks one that came past the queue after a deletion by hand.
  write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
end
if lock and lock.held then
  return {mine, lock.owner or '-', lock.left}
end
return {mine, '', 0}
