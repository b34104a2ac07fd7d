-- Takes the lock from whoever holds it, tells them, and lets in who waits.
--
-- KEYS     lock, queue, waiters
-- Replies  {'broken', value, ms left} or {'free'}

local function tell_of_loss(owner, record)
  local stop = (record:find('\n', 82, true) or #record + 1) - 1
  local readable, holder = pcall(cjson.decode, record:sub(82, stop))
  if readable and type(holder) == 'table' and type(holder.channel) == 'string' then
    redis.pcall('PUBLISH', holder.channel, 'l' .. owner)
  end
end

local lock, foreign = read_lock()
if foreign then return foreign end

if not (lock and lock.held) then
  if queue_exists() then pass_on(lock) end
  return {'free'}
end
local value, left = shown(lock)
if lock.crowd then
  local fields = redis.call('HGETALL', LOCK)
  for i = 1, #fields, 2 do
    if #fields[i] == 40 then tell_of_loss(fields[i], fields[i + 1]) end
  end
else
  tell_of_loss(lock.owner, value)
end
pass_on(nil)
return {'broken', value, left}
