-- Confirms or cancels the order of a reservation; a cancelled one gives its amount back to the stock in the same step.
--
-- KEYS[1]  the stock
-- KEYS[2]  the order, in the same slot
-- ARGV[1]  'confirmed' or 'cancelled'
--
-- Replies {'done'}, {'missing'}, {'not a number', 2} (the stock cannot take it back), or {'other order', amount, state} for one
-- that was settled the other way.
-- Atomic: both. A repeat answers as the first did.

local order = redis.call('HMGET', KEYS[2], 'amount', 'state')
if not order[1] then return {'missing'} end
if order[2] == ARGV[1] then return {'done'} end
if order[2] ~= 'reserved' then return {'other order', order[1], order[2]} end
if ARGV[1] == 'cancelled' then
    local back = redis.pcall('INCRBY', KEYS[1], order[1])
    if type(back) == 'table' then return {'not a number', 2} end
end
redis.call('HSET', KEYS[2], 'state', ARGV[1])
return {'done'}
