-- Gives back what stands under an owner value: the lock, or the place in the queue.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value
-- Replies  'released', 'expired' (nothing of it was there) or 'other' (another holds the lock; nothing changed)

local owner = ARGV[1]

local lock, foreign = read_lock()
if foreign then return foreign end

if lock and lock.owner == owner then
  pass_on()
  return lock.held and 'released' or 'expired'
end

local waiter = waiter_of(owner)
if waiter then
  leave_queue(owner, waiter)
  if not (lock and lock.held) then
    pass_on()
  elseif lock.queued and not queue_exists() then
    write_lock(lock.owner, lock.left, lock.ttl, lock.since, lock.json)
  end
  return 'released'
end
return lock and lock.held and 'other' or 'expired'
