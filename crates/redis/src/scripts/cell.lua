-- What both scripts know of a cell. This text stands before the others.
--
-- A cell is a string of a fixed-width header and its value:
--            1..2   format version and kind: '1c'
--            3..42  which change wrote it
--           43..58  version: microseconds since 1970 on this server's clock, or one more than the version before
--           59..    value
-- Its watchers are a hash: the channel of a client, and until when it listens, in ms since 1970.
--
-- Each script runs as one atomic step.

local CELL, WATCHERS = KEYS[1], KEYS[2]
local LISTENS_MS = 10000  -- five times as long as a client takes to say again that it listens
-- Of fixed width: an open repetition takes quadratic time on a long foreign value, and stops the server for it.
local SHAPE = '^1c' .. string.rep('%x', 40) .. string.rep('%d', 16)

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- The cell's text or false; or an error reply in the second place.
local function read_cell()
  local cell = redis.pcall('GET', CELL)
  if type(cell) == 'table' then return nil, cell end
  if cell and not cell:sub(1, 58):find(SHAPE) then
    return nil, redis.error_reply('FOREIGNVALUE the key holds something else')
  end
  return cell
end
