-- Adds tickets that are not there yet.
--
-- KEYS[1]  the free ones, a list
-- KEYS[2]  how often each was handed out, a hash: it has every ticket that is there
-- ARGV     the tickets
--
-- Replies how many were added. Atomic.

local added = 0
for _, ticket in ipairs(ARGV) do
    if redis.call('HSETNX', KEYS[2], ticket, 0) == 1 then
        redis.call('RPUSH', KEYS[1], ticket)
        added = added + 1
    end
end
return added
