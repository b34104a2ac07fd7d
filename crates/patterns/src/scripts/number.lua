-- Numbers of 64 bits, of which Lua's own arithmetic has 53: the server counts. Stands before the scripts that take.

-- Whether a key holds a whole number.
local function whole(key)
    return type(redis.pcall('INCRBY', key, '0')) ~= 'table'
end

-- Takes an amount from a whole number. Where it has less, nothing is taken, and what it has is answered.
local function short_of(key, amount)
    local has = redis.call('GET', key)
    local left = redis.pcall('DECRBY', key, amount)
    if type(left) == 'table' then return has end -- below what 64 bits hold
    if left < 0 then
        redis.call('INCRBY', key, amount)
        return has
    end
end

