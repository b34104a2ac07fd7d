-- Who holds a lock, and who is let in next. This text stands behind the queue's, before each script that changes either.
--
-- One that holds alone is a string, described in record.lua, so that taking a free lock is a plain SET NX. Several that
-- hold beside each other, readers or those who have permits, are a hash in its place, which no SET NX passes either:
--            owner value  a record as that string is, of 'r' or 'p', with the end of its own lease
--            #            version, 'r' readers or 'p' permits, limit (10), permits or readers that hold (10), a moment
--                         before which none of their leases ends (14), and the owner value whose lease that was (40)
--            =            of permits, which slots are taken: a '1' or '0' for each
-- The hash goes with its last holder. So a name is a lock or a semaphore for as long as somebody holds or waits.

local CROWD = '^1[rp]' .. string.rep('%d', 34) .. string.rep('%x', 40) .. '$'
local NEVER = 99999999999999

local function keep_lock(left)
  keep_crowd(LOCK, math.max(left, queue_exists() and KEEP_MS or 0))
end

-- Writes what is known of all holders of a hash together. Without any it is gone.
local function write_crowd(lock)
  lock.held = lock.taken > 0
  lock.left = math.max(lock.earliest - now, 0)
  if not lock.held then
    redis.call('DEL', LOCK)
    return
  end
  local head = '1%s%010.0f%010.0f%014.0f%s'
  head = string.format(head, lock.crowd, lock.limit, lock.taken, lock.earliest, lock.sample)
  redis.call('HSET', LOCK, '#', head)
end

-- Takes one holder out of a hash. `write_crowd` is still to be called.
local function remove_holder(lock, owner, record)
  redis.call('HDEL', LOCK, owner)
  if lock.crowd == 'r' then
    lock.taken = lock.taken - 1
    return
  end
  local taken = redis.call('HGET', LOCK, '=')
  for slot in record:sub(record:find('\n', 82, true) + 1):gmatch('%d+') do
    taken = taken:sub(1, slot) .. '0' .. taken:sub(slot + 2)
    lock.taken = lock.taken - 1
  end
  redis.call('HSET', LOCK, '=', taken)
end

-- Looks at every holder of a hash, and removes those whose lease has ended.
local function expel_lapsed(lock)
  local fields = redis.call('HGETALL', LOCK)
  lock.earliest, lock.sample = NEVER, NOBODY
  for i = 1, #fields, 2 do
    local owner, record = fields[i], fields[i + 1]
    if #owner == 40 then
      local ends = end_of(record)
      if ends <= now then
        remove_holder(lock, owner, record)
      elseif ends < lock.earliest then
        lock.earliest, lock.sample = ends, owner
      end
    end
  end
  write_crowd(lock)
end

local function read_crowd(refusal)
  local head = redis.pcall('HGET', LOCK, '#')
  if type(head) == 'table' then return nil, refusal end
  if not head or not head:find(CROWD) then
    return nil, redis.error_reply('FOREIGNVALUE the key holds something else')
  end
  local lock = {
    crowd = head:sub(2, 2), limit = tonumber(head:sub(3, 12)), taken = tonumber(head:sub(13, 22)),
    earliest = tonumber(head:sub(23, 36)), sample = head:sub(37, 76), held = true,
  }
  lock.left = lock.earliest - now
  if lock.left <= 0 then expel_lapsed(lock) end
  return lock
end

-- The lock as a table; nil when there is none; nil and an error reply when the value is not ours.
local function read_lock()
  local value = redis.pcall('GET', LOCK)
  if not value then return nil end
  if type(value) == 'table' then return read_crowd(value) end
  if not is_ours(value) then
    return nil, redis.error_reply('FOREIGNVALUE the key holds something else')
  end
  local lock = {
    value = value, queued = value:sub(2, 2) == 'q', owner = value:sub(3, 42),
    ttl = tonumber(value:sub(57, 67)), since = tonumber(value:sub(68, 81)), json = value:sub(82),
  }
  if lock.queued then
    lock.left = end_of(value) - now
  else
    lock.left = redis.call('PTTL', LOCK)
    if lock.left == -1 then
      -- Somebody ran PERSIST: without an expiry a dead holder's lock would never come free.
      redis.call('PEXPIRE', LOCK, lock.ttl)
      lock.left = lock.ttl
    end
  end
  lock.held = lock.owner ~= NOBODY and lock.left > 0
  return lock
end

-- One holder's record, and what is left of its lease: of a hash, that of the lease that ends first.
local function shown(lock)
  if not lock.crowd then return lock.value, lock.left end
  local record = redis.call('HGET', LOCK, lock.sample)
  if not record or end_of(record) ~= lock.earliest then
    expel_lapsed(lock)
    record = redis.call('HGET', LOCK, lock.sample)
  end
  return record, lock.left
end

-- Writes a lock that one holds alone, so that it lasts `left` ms, and longer as a key when somebody waits. Answers it.
local function write_lock(owner, left, ttl, since, json)
  local flag, ends, px = '-', 0, left
  if queue_exists() then
    flag, ends, px = 'q', now + left, math.max(left, KEEP_MS)
  end
  local header = string.format('1%s%s%014.0f%011.0f%014.0f', flag, owner, ends, ttl, since)
  redis.call('SET', LOCK, header .. json, 'PX', string.format('%.0f', px))
  return {
    value = header .. json, queued = flag == 'q', owner = owner, ttl = ttl, since = since, json = json, left = left,
    held = owner ~= NOBODY,
  }
end

-- Takes the lowest free slots of a hash, and answers them as text.
local function take_slots(count)
  local taken, slots, from = redis.call('HGET', LOCK, '=') or '', {}, 1
  for n = 1, count do
    local at = taken:find('0', from, true) or #taken + 1
    taken = taken:sub(1, at - 1) .. '1' .. taken:sub(at + 1)
    slots[n], from = at - 1, at + 1
  end
  redis.call('HSET', LOCK, '=', taken)
  return table.concat(slots, ',')
end

-- Makes a holder of `owner`, alone or beside those of a hash who hold already. It must fit. Answers the lock as it is
-- then, and the slots.
local function admit(lock, owner, want, left, ttl, since, json)
  if want.kind == 'x' then
    return write_lock(owner, left, ttl, since, json), ''
  end
  if not (lock and lock.crowd and lock.held) then
    redis.call('DEL', LOCK)
    lock = {crowd = want.kind, limit = want.of, taken = 0, earliest = NEVER, sample = NOBODY}
  end
  local slots, behind = '', ''
  if want.kind == 'p' then
    slots = take_slots(want.count)
    behind = '\n' .. slots
  end
  local header = string.format('1%s%s%014.0f%011.0f%014.0f', want.kind, owner, now + left, ttl, since)
  redis.call('HSET', LOCK, owner, header .. json .. behind)
  lock.taken = lock.taken + want.count
  if now + left < lock.earliest then lock.earliest, lock.sample = now + left, owner end
  write_crowd(lock)
  keep_lock(left)
  return lock, slots
end

-- What `owner` holds of a hash: its record, or nil.
local function record_in(lock, owner)
  return lock.crowd and lock.held and redis.call('HGET', LOCK, owner) or nil
end

-- Lets a holder of a hash hold for `ttl` from now on.
local function extend(lock, owner, record, ttl)
  redis.call('HSET', LOCK, owner, ending(record, now + ttl))
  if now + ttl < lock.earliest then
    lock.earliest, lock.sample = now + ttl, owner
    write_crowd(lock)
  end
  keep_lock(ttl)
end

-- Whether what is wanted can be had beside those who hold.
local function fits(want, lock)
  if not (lock and lock.held) then return true end
  if lock.crowd ~= want.kind then return false end
  return want.kind == 'r' or lock.taken + want.count <= lock.limit
end

-- What the name is in use as: the limit of a semaphore, 0 for a lock; nil when nobody uses it.
local function in_use_as(lock)
  if lock and lock.held then return lock.crowd == 'p' and lock.limit or 0 end
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  local waiter = first and waiter_of(first)
  if not waiter then return nil end
  return waiter.want.kind == 'p' and waiter.want.of or 0
end

-- What stands against `want`, as `in_use_as` tells it; nil when nothing does.
local function unlike(lock, want)
  local used = in_use_as(lock)
  if used and used ~= (want.kind == 'p' and want.of or 0) then return used end
  return nil
end

-- The first waiter who can be told, if what he wants fits beside those who hold; nil and true if it does not, which holds
-- up everybody behind him. Who gave no sign of life is removed; who is alive but out of reach just now keeps the place
-- and is passed over. `caller` is in reach by asking. `deaf` remembers who is out of reach.
local function first_in_reach(caller, lock, deaf)
  local skipped = 0
  deaf = deaf or {}
  while true do
    local owners = redis.call('ZRANGE', QUEUE, skipped, skipped + 15)
    if #owners == 0 then return nil end
    for _, owner in ipairs(owners) do
      local waiter = waiter_of(owner)
      local alive = waiter and tonumber(redis.call('HGET', WAITERS, '@' .. waiter.channel) or 0) > now
      if not alive then
        leave_queue(owner, waiter)
      elseif not fits(waiter.want, lock) then
        return nil, true
      elseif owner == caller or waiter.polls then
        return owner, waiter
      elseif not deaf[waiter.channel] and tell(owner, waiter) then
        return owner, waiter
      else
        deaf[waiter.channel] = true
        skipped = skipped + 1
      end
    end
  end
end

-- Hands the lock to a waiter, provisionally until he confirms by a renewal. One that gathers votes holds it since 0,
-- which says that it is a vote so far.
local function hand_to(owner, waiter, lock)
  leave_queue(owner, waiter)
  local left = math.min(PROVISIONAL_MS, waiter.ttl)
  return (admit(lock, owner, waiter.want, left, waiter.ttl, waiter.votes and 0 or now, waiter.json))
end

-- Lets in whoever waits and fits, first come first: one that wants it alone, all readers before the next of those, or as
-- many as there are permits for. Answers the lock as it is then, and whether somebody is left whom all others wait for.
local function serve(lock, caller)
  local deaf = {}
  while true do
    local owner, waiter = first_in_reach(caller, lock, deaf)
    if not owner then return lock, waiter end
    lock = hand_to(owner, waiter, lock)
    if not lock.crowd then return lock, true end
  end
end

-- Serves those who wait for what has come free. With waiters out of reach only, a lock stays free but queued.
local function pass_on(lock)
  lock = serve(lock)
  if lock and lock.held then
    if lock.crowd then keep_lock(0) end
  elseif queue_exists() then
    lock = write_lock(NOBODY, 0, 0, now, '{}')
  else
    redis.call('DEL', LOCK)
  end
  return lock
end

