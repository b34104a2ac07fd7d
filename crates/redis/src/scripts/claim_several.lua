-- Takes several locks in one step, or none. For one server alone, since they have different slots.
--
-- KEYS     for each lock: lock, queue, waiters
-- ARGV     1 owner value, 2 TTL in ms, 3 JSON, and from 4 on what is wanted of each: 'x' or 'r'
-- Replies  {'granted', ''}                          all are held for the TTL from now
--          {'busy', value, ms left, waiters, n}     the nth is held by another, or waited for; nothing was taken
--          {'unlike', limit, n}                     the nth is in use as a semaphore of that limit
-- Asking again with the same owner value answers as before.

local owner, ttl, json = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function at(n)
  LOCK, QUEUE, WAITERS = KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n]
end

local count, locks = #KEYS / 3, {}
for n = 1, count do
  at(n)
  local want = want_of(ARGV[3 + n])
  local lock, foreign = read_lock()
  if foreign then return foreign end
  local mine = lock and lock.held and (lock.owner == owner or record_in(lock, owner))
  if not mine then
    local blocked = true
    if not (lock and lock.held) or lock.crowd then lock, blocked = serve(lock) end
    local used = unlike(lock, want)
    if used then return {'unlike', used, n} end
    if blocked or not fits(want, lock) then
      local value, left = shown(lock)
      return {'busy', value, left, redis.call('ZCARD', QUEUE), n}
    end
  end
  locks[n] = {lock = lock, want = want, mine = mine}
end

for n = 1, count do
  at(n)
  local lock, mine = locks[n].lock, locks[n].mine
  if mine and lock.crowd then
    extend(lock, owner, mine, ttl)
  elseif mine then
    write_lock(owner, ttl, ttl, lock.since, json)
  else
    admit(lock, owner, locks[n].want, ttl, ttl, now, json)
  end
end
return {'granted', ''}
