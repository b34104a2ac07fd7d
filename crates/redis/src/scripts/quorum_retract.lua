-- Gives back what a lost round left: a vote, a grant, or the place in the queue. A grant that a later round has confirmed
-- stays. This text stands before the whole release.
--
-- KEYS     lock, queue, waiters
-- ARGV     1 '1-' and the owner value, 2 number of the round that was lost
-- Replies  1 given back, 0 nothing of it was there, -1 another holds the lock and nothing was changed

do
  local lock, foreign = read_lock()
  if foreign then return foreign end
  if lock and lock.owner == ARGV[1]:sub(3) and lock.since > tonumber(ARGV[2]) then return 0 end
end

