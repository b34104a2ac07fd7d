-- Takes an amount from a number, if it has as much.
--
-- KEYS[1]  the number
-- ARGV[1]  the amount, from 1 to 2^63 - 1
--
-- Replies {'done', what is left}, {'insufficient', what is there}, {'missing'} or {'not a number'}.
-- Atomic: comparison and change.

-- Whether it is a whole number of 64 bits: the server says so by its own arithmetic. One of Lua's has 53 bits.
local function whole(key)
    return type(redis.pcall('INCRBY', key, '0')) ~= 'table'
end

if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
if not whole(KEYS[1]) then return {'not a number'} end
local has = redis.call('GET', KEYS[1])
local left = redis.pcall('DECRBY', KEYS[1], ARGV[1])
if type(left) == 'table' then return {'insufficient', has} end -- below what 64 bits hold
if left < 0 then
    redis.call('INCRBY', KEYS[1], ARGV[1])
    return {'insufficient', has}
end
return {'done', redis.call('GET', KEYS[1])}
