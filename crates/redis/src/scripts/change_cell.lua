
-- Changes a cell on condition of its version, and tells those who listen.
--
-- KEYS     cell, watchers
-- ARGV     1 this change's own value, 2 version that must be there or '-' for no cell, 3 'write' or 'remove',
--          4 ms until it expires or 0, 5 value
-- Replies  {'done', version}
--          {'conflict', cell or false, ms until it expires or -1}    nothing was changed
-- Asking again with the same change answers as before while the cell is as it left it.

local by, expected, how, ttl, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local function tell_watchers()
  local listeners = redis.call('HGETALL', WATCHERS)
  for i = 1, #listeners, 2 do
    if tonumber(listeners[i + 1]) > now_ms then
      redis.pcall('PUBLISH', listeners[i], 'c' .. redis.sha1hex(CELL))
    else
      redis.call('HDEL', WATCHERS, listeners[i])
    end
  end
end

local cell, foreign = read_cell()
if foreign then return foreign end
local version = cell and cell:sub(43, 58) or '-'

if cell and cell:sub(3, 42) == by then
  return {'done', version}
end
if version ~= expected then
  return {'conflict', cell, redis.call('PTTL', CELL)}
end
if how == 'remove' then
  redis.call('DEL', CELL)
else
  local next = math.max(now_us, cell and tonumber(version) + 1 or 0)
  version = string.format('%016.0f', next)
  local text = '1c' .. by .. version .. value
  if ttl == '0' then
    redis.call('SET', CELL, text)
  else
    redis.call('SET', CELL, text, 'PX', ttl)
  end
end
tell_watchers()
return {'done', version}
