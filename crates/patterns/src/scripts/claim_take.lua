-- Hands out tickets, those first whose worker let his time pass.
--
-- KEYS[1]  the free ones, a list
-- KEYS[2]  those handed out, by the end of their time in milliseconds on the server's clock
-- KEYS[3]  who has them, a hash
-- KEYS[4]  how often each was handed out, a hash
-- ARGV[1]  the worker
-- ARGV[2]  for how long, in milliseconds
-- ARGV[3]  how many at most
--
-- Replies tickets and how often each was handed out, this time included, in turn. Atomic.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken = {}

local function hand_out(ticket)
    redis.call('ZADD', KEYS[2], now + ARGV[2], ticket)
    redis.call('HSET', KEYS[3], ticket, ARGV[1])
    taken[#taken + 1] = ticket
    taken[#taken + 1] = redis.call('HINCRBY', KEYS[4], ticket, 1)
end

local wanted = tonumber(ARGV[3])
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, wanted)
for _, ticket in ipairs(over) do hand_out(ticket) end
for _ = #over + 1, wanted do
    local ticket = redis.call('LPOP', KEYS[1])
    if not ticket then break end
    hand_out(ticket)
end
return taken
