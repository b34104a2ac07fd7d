-- What every script but the plain release knows of a lock's record. This text stands before the others.
--
-- A lock is a string of a fixed-width header and the holder's particulars as JSON:
--            1      format version
--            2      '-' nobody waits: the key's own expiry is the lease's
--                   'q' somebody waits: the lease ends at 43..56, and the key lives on, so that no newcomer's
--                   plain SET NX can pass the queue after an expiry
--            3..42  owner value; forty zeros when the lock is free but queued
--           43..56  end of the lease in ms since 1970, only with 'q'
--           57..67  TTL in ms
--           68..81  held since, in ms since 1970
--           82..    JSON
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

