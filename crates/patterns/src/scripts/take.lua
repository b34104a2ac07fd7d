-- Takes an amount from a number, if it has as much.
--
-- KEYS[1]  the number
-- ARGV[1]  the amount, from 1 to 2^63 - 1
--
-- Replies {'done', what is left}, {'insufficient', what is there}, {'missing'} or {'not a number'}.
-- Atomic: comparison and change.

if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
if not whole(KEYS[1]) then return {'not a number'} end
local has = short_of(KEYS[1], ARGV[1])
if has then return {'insufficient', has} end
return {'done', redis.call('GET', KEYS[1])}
