-- Lets something through if its rate allows (GCRA, on the server's clock).
--
-- KEYS[1]  when the next one would come if they came evenly, in microseconds since 1970
-- ARGV[1]  microseconds between two that come evenly
-- ARGV[2]  how far ahead of that the time may run, in microseconds
-- ARGV[3]  how many at once
--
-- Replies {1, microseconds of the allowance that are left} or {0, microseconds until it would be let through}. Atomic.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
due = math.min(due, now + ARGV[2]) -- further ahead only when the clock was set back
local after = due + ARGV[1] * ARGV[3]
local left = ARGV[2] - (after - now)
if left < 0 then return {0, -left} end
-- 2^53 microseconds are 285 years.
redis.call('SET', KEYS[1], string.format('%d', after), 'PX', math.ceil((after - now) / 1000))
return {1, left}
