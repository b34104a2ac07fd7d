-- The least that a safe release can be.
--
-- KEYS     lock
-- ARGV     1 owner value
-- Replies  1 when it was ours and is gone, else 0

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
