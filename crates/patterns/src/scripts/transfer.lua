-- Moves an amount from one number to another: all of it or nothing.
--
-- KEYS[1]  whence
-- KEYS[2]  whither, in the same slot
-- ARGV[1]  the amount, from 1 to 2^63 - 1
--
-- Replies {'done', what is left, what is there now}, {'insufficient', what is there}, {'missing', 1 or 2},
-- {'not a number', 1 or 2} or {'overflow', what is there}.
-- Atomic: both changes. Every refusal leaves both as they were.

for place, key in ipairs(KEYS) do
    if redis.call('EXISTS', key) == 0 then return {'missing', place} end
    if not whole(key) then return {'not a number', place} end
end
local to = redis.call('GET', KEYS[2])
local from = short_of(KEYS[1], ARGV[1])
if from then return {'insufficient', from} end
local sum = redis.pcall('INCRBY', KEYS[2], ARGV[1])
if type(sum) == 'table' then
    redis.call('INCRBY', KEYS[1], ARGV[1])
    return {'overflow', to}
end
return {'done', redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}
