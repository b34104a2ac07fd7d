-- Sets the limit of a semaphore that somebody holds or waits for. Nobody loses a permit.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 limit
-- Replies  {'was', limit before}, {'unlike'} when it is in use as a lock, or {'unused'}
-- Waiters that want more than there are lose their places and are told, so that their own claims find out.

local of = tonumber(ARGV[1])

local lock, foreign = read_lock()
if foreign then return foreign end

local used = in_use_as(lock)
if not used then return {'unused'} end
if used == 0 then return {'unlike'} end
if lock and lock.held then
  lock.limit = of
  write_crowd(lock)
end
for _, owner in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  local waiter = waiter_of(owner)
  if waiter and waiter.want.kind == 'p' then
    if waiter.want.count > of then
      leave_queue(owner, waiter)
      tell(owner, waiter)
    else
      local want = want_of(string.format('%.0f/%.0f', waiter.want.count, of))
      write_waiter(owner, waiter.head, waiter.channel, want, waiter.json)
    end
  end
end
pass_on(lock)
return {'was', used}
