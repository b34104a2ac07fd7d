-- A lock's queue. This text stands, behind the record's, before each script that needs the queue.
--
-- KEYS[1]  the lock, as described in record.lua
-- KEYS[2]  the queue: a sorted set, owner value -> ticket
-- KEYS[3]  the waiters: a hash
--            owner value  mode ('s' hears messages, 'p' polls; 'S' and 'P' the same, of one that gathers votes at
--                         several servers, see quorum_claim.lua; 'b' hears messages that go to all nodes of a
--                         cluster, each of which counts its own listeners only; 'h' hears a channel of this
--                         lock alone, which has its slot), TTL (11), since (14), channel, newline, JSON
--            @channel     until when its client counts as alive, in ms since 1970
--            #channel     how many waiters its client has here
--            +            the last ticket
--
-- A message is one letter and an owner value: 'g' the lock was handed to it, 'l' its lock was broken.

local LOCK, QUEUE, WAITERS = KEYS[1], KEYS[2], KEYS[3]
local ALIVE_MS = 10000       -- a client's sign of life counts this long; it renews it every 2 s
local PROVISIONAL_MS = 1000  -- a lock handed over is confirmed within this, or passed on

-- The lock as a table; nil when there is none; nil and an error reply when the value is not ours.
local function read_lock()
  local value = redis.pcall('GET', LOCK)
  if not value then return nil end
  if type(value) == 'table' then return nil, value end
  if not is_ours(value) then
    return nil, redis.error_reply('FOREIGNVALUE the key holds something else')
  end
  local lock = {
    value = value, queued = value:sub(2, 2) == 'q', owner = value:sub(3, 42),
    ttl = tonumber(value:sub(57, 67)), since = tonumber(value:sub(68, 81)), json = value:sub(82),
  }
  if lock.queued then
    lock.left = tonumber(value:sub(43, 56)) - now
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

local function queue_exists()
  return redis.call('EXISTS', QUEUE) == 1
end

-- Writes the lock so that it lasts `left` ms, and longer as a key when somebody waits.
local function write_lock(owner, left, ttl, since, json)
  local flag, ends, px = '-', 0, left
  if queue_exists() then
    flag, ends, px = 'q', now + left, math.max(left, KEEP_MS)
  end
  local header = string.format('1%s%s%014.0f%011.0f%014.0f', flag, owner, ends, ttl, since)
  redis.call('SET', LOCK, header .. json, 'PX', string.format('%.0f', px))
end

local function waiter_of(owner)
  local record = redis.call('HGET', WAITERS, owner)
  if not record then return nil end
  local stop = record:find('\n', 27, true)
  return {
    polls = record:sub(1, 1):lower() == 'p', uncounted = record:sub(1, 1) == 'b', sharded = record:sub(1, 1) == 'h',
    votes = record:sub(1, 1):match('%u') ~= nil, ttl = tonumber(record:sub(2, 12)),
    channel = record:sub(27, stop - 1), json = record:sub(stop + 1),
  }
end

local function keep_queue()
  redis.call('PEXPIRE', QUEUE, KEEP_MS)
  redis.call('PEXPIRE', WAITERS, KEEP_MS)
end

-- The place is the next one, or with `ticket` that of the ticket, which then tells since when it waits.
local function enqueue(owner, mode, ttl, channel, json, ticket)
  if not redis.call('ZSCORE', QUEUE, owner) then
    redis.call('ZADD', QUEUE, ticket or redis.call('HINCRBY', WAITERS, '+', 1), owner)
    redis.call('HINCRBY', WAITERS, '#' .. channel, 1)
  end
  local record = string.format('%s%011.0f%014.0f%s\n', mode, ttl, ticket or now, channel) .. json
  redis.call('HSET', WAITERS, owner, record, '@' .. channel, string.format('%.0f', now + ALIVE_MS))
  keep_queue()
end

-- Takes a waiter out of the queue. The last one takes both keys with it.
local function leave_queue(owner, waiter)
  redis.call('ZREM', QUEUE, owner)
  redis.call('HDEL', WAITERS, owner)
  if not queue_exists() then
    redis.call('DEL', WAITERS)
  elseif waiter and redis.call('HINCRBY', WAITERS, '#' .. waiter.channel, -1) <= 0 then
    redis.call('HDEL', WAITERS, '#' .. waiter.channel, '@' .. waiter.channel)
  end
end

-- The first waiter who can be told. Who gave no sign of life is removed; who is alive but out of reach just now
-- keeps the place and is passed over. `caller` is in reach by asking.
local function first_in_reach(caller)
  local deaf, skipped = {}, 0
  while true do
    local owners = redis.call('ZRANGE', QUEUE, skipped, skipped + 15)
    if #owners == 0 then return nil end
    for _, owner in ipairs(owners) do
      local waiter = waiter_of(owner)
      local alive = waiter and tonumber(redis.call('HGET', WAITERS, '@' .. waiter.channel) or 0) > now
      if not alive then
        leave_queue(owner, waiter)
      elseif owner == caller or waiter.polls then
        return owner, waiter
      elseif deaf[waiter.channel] then
        skipped = skipped + 1
      else
        local receivers
        if waiter.sharded then
          receivers = redis.pcall('SPUBLISH', LOCK .. ':' .. waiter.channel, 'g' .. owner)
        else
          receivers = redis.pcall('PUBLISH', waiter.channel, 'g' .. owner)
        end
        if type(receivers) == 'number' and (receivers > 0 or waiter.uncounted) then return owner, waiter end
        deaf[waiter.channel] = true
        skipped = skipped + 1
      end
    end
  end
end

-- Hands a lock that is free to a waiter, provisionally until he confirms by a renewal. One that gathers votes holds it
-- since 0, which says that it is a vote so far.
local function hand_to(owner, waiter)
  leave_queue(owner, waiter)
  write_lock(owner, math.min(PROVISIONAL_MS, waiter.ttl), waiter.ttl, waiter.votes and 0 or now, waiter.json)
end

-- Hands the lock to the first waiter in reach. With waiters out of reach only, it stays free but queued.
local function pass_on()
  local owner, waiter = first_in_reach(nil)
  if owner then
    hand_to(owner, waiter)
  elseif queue_exists() then
    write_lock(NOBODY, 0, 0, now, '{}')
  else
    redis.call('DEL', LOCK)
  end
end

