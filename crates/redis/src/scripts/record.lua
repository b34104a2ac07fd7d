-- What every script but the plain release knows of a lock's record. This text stands before the others.
--
-- A lock that one holds alone is a string of a fixed-width header and the holder's particulars as JSON:
--            1      format version
--            2      '-' nobody waits: the key's own expiry is the lease's
--                   'q' somebody waits: the lease ends at 43..56, and the key lives on, so that no newcomer's
--                   plain SET NX can pass the queue after an expiry
--                   'r' a reader, 'p' permits: only in the hash that is described in holders.lua
--            3..42  owner value; forty zeros when the lock is free but queued
--           43..56  end of the lease in ms since 1970, not with '-'
--           57..67  TTL in ms
--           68..81  held since, in ms since 1970
--           82..    JSON; with 'p' a newline behind it and the slots of the permits, as in '0,1'
--
-- Each script runs as one atomic step. Expiry is judged by the server's own clock.

local NOBODY = string.rep('0', 40)
local KEEP_MS = 12000  -- what the queue and a queued lock live at least, longer than any sign of life
-- Of fixed width: an open repetition takes quadratic time on a long foreign value, and stops the server for it.
local SHAPE = '^1[-q]' .. string.rep('%x', 40) .. string.rep('%d', 39) .. '{'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_ours(value)
  return value:sub(1, 82):find(SHAPE) ~= nil
end

-- When the lease in a record ends, and the record with another end.
local function end_of(record)
  return tonumber(record:sub(43, 56))
end

local function ending(record, at)
  return record:sub(1, 42) .. string.format('%014.0f', at) .. record:sub(57)
end

-- Sees to it that a hash of holders lasts `left` ms at least, and as long as any of its leases. Answers whether it had
-- lost its expiry.
local function keep_crowd(key, left)
  local px = redis.call('PTTL', key)
  local persisted = px == -1
  if persisted then
    local fields = redis.call('HGETALL', key)
    for i = 1, #fields, 2 do
      if #fields[i] == 40 then px = math.max(px, end_of(fields[i + 1]) - now) end
    end
  end
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(px, left)))
  return persisted
end

