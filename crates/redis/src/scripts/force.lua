-- Takes the lock from its holder, tells him, and hands it to the first waiter.
--
-- KEYS     lock, queue, waiters
-- Replies  {'broken', value, ms left} or {'free'}

local lock, foreign = read_lock()
if foreign then return foreign end

if not (lock and lock.held) then
  if queue_exists() then pass_on() end
  return {'free'}
end
local readable, holder = pcall(cjson.decode, lock.json)
if readable and type(holder) == 'table' and type(holder.channel) == 'string' then
  redis.pcall('PUBLISH', holder.channel, 'l' .. lock.owner)
end
pass_on()
return {'broken', lock.value, lock.left}
