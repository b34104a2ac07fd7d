
-- Reads a cell, and lets a client hear of its changes.
--
-- KEYS     cell, watchers
-- ARGV     1 channel of a client that listens from now on, or ''
-- Replies  {cell or false, ms until it expires or -1}

local channel = ARGV[1]
local cell, foreign = read_cell()
if foreign then return foreign end
if channel ~= '' then
  redis.call('HSET', WATCHERS, channel, string.format('%.0f', now_ms + LISTENS_MS))
  redis.call('PEXPIRE', WATCHERS, LISTENS_MS)
end
return {cell, redis.call('PTTL', CELL)}
