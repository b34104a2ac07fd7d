-- Puts a key that was built beside in the place of another.
--
-- KEYS[1]  the key built beside
-- KEYS[2]  the key, in the same slot
--
-- Replies 1, or 0 when there is nothing beside: it was never written, has expired, or is in its place already.
-- Atomic: whoever reads sees the old content or the new one.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('PERSIST', KEYS[1])
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
