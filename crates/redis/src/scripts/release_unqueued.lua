-- Gives back a lock for which nobody waits; this text stands before the rest of the release, and on this path it
-- costs no more than the textbook's compare-and-delete.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 owner value

do
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and value:sub(1, 42) == '1-' .. ARGV[1] then
    redis.call('DEL', KEYS[1])
    return 'released'
  end
end

