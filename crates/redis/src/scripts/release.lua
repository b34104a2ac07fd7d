-- Gives back what stands under an owner value: the lock, one's part in it, or the place in the queue.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 '1-' and the owner value
-- Replies  1 released, 0 nothing of it was there, -1 others hold the lock and nothing was changed

local owner = ARGV[1]:sub(3)

local lock, foreign = read_lock()
if foreign then return foreign end

if lock and lock.owner == owner then
  pass_on(nil)
  return lock.held and 1 or 0
end
local record = lock and record_in(lock, owner)
if record then
  remove_holder(lock, owner, record)
  write_crowd(lock)
  pass_on(lock)
  return 1
end

local waiter = waiter_of(owner)
if waiter then
  leave_queue(owner, waiter)
  if not (lock and lock.held) or lock.crowd then
    pass_on(lock)  -- whoever waited only for that one
  elseif lock.queued and not queue_exists() then
    write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
  end
  return 1
end
return lock and lock.held and -1 or 0
