-- Runs one command on a key, unless the key has seen a newer fence.
--
-- KEYS[1]  the key
-- KEYS[2]  where its newest fence lies, in the same slot
-- ARGV[1]  the fence, in decimal digits without leading zeros
-- ARGV[2]  the command, which takes the key as its first argument; none to only advance
-- ARGV[3…] its further arguments
--
-- Replies {0, newest fence} when refused, {1} or {1, reply of the command} when done.
-- Atomic: comparison, the new fence and the command. A command that fails leaves the fence advanced and nothing else.

local fence, seen = ARGV[1], redis.call('GET', KEYS[2])

-- As text: a number of Lua's has 53 bits, a fence has 63.
local function older(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
end

if seen and older(fence, seen) then return {0, seen} end
if seen ~= fence then redis.call('SET', KEYS[2], fence) end
if not ARGV[2] then return {1} end
return {1, redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3))}
