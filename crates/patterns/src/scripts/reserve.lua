-- Takes an amount from the stock for an order and notes the order, in one step.
--
-- KEYS[1]  the stock
-- KEYS[2]  the order, in the same slot: a hash of amount and state
-- ARGV[1]  the amount, from 1 to 2^63 - 1
--
-- Replies {'done', what is left}, {'insufficient', what is there}, {'missing'}, {'not a number'}, or
-- {'other order', amount, state} for an order that is there with another amount, or that is cancelled.
-- Atomic: both. A repeat for an order that is there answers as the first did.

local order = redis.call('HMGET', KEYS[2], 'amount', 'state')
if order[1] then
    if order[1] == ARGV[1] and order[2] ~= 'cancelled' then
        return {'done', redis.call('GET', KEYS[1]) or '0'}
    end
    return {'other order', order[1], order[2]}
end
if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
if not whole(KEYS[1]) then return {'not a number'} end
local has = short_of(KEYS[1], ARGV[1])
if has then return {'insufficient', has} end
redis.call('HSET', KEYS[2], 'amount', ARGV[1], 'state', 'reserved')
return {'done', redis.call('GET', KEYS[1])}
