-- A lock's queue. This text stands, behind the record's, before each script that needs the queue.
--
-- KEYS[1]  the lock, as described in record.lua and holders.lua
-- KEYS[2]  the queue: a sorted set, owner value -> ticket
-- KEYS[3]  the waiters: a hash
--            owner value  mode ('s' hears messages, 'p' polls; 'S' and 'P' the same, of one that gathers votes at
--                         several servers, see quorum_claim.lua; 'b' hears messages that go to all nodes of a
--                         cluster, each of which counts its own listeners only; 'h' hears a channel of this
--                         lock alone, which has its slot), TTL (11), since (14), channel, a space and what is wanted
--                         unless it is the whole lock, newline, JSON
--            @channel     until when its client counts as alive, in ms since 1970
--            #channel     how many waiters its client has here
--            +            the last ticket
--
-- What is wanted: 'x' the lock alone, 'r' beside other readers, '2/5' two of five permits.
-- A message is one letter and an owner value: 'g' the lock was handed to it, 'l' its lock was broken.

local LOCK, QUEUE, WAITERS = KEYS[1], KEYS[2], KEYS[3]
local ALIVE_MS = 10000       -- a client's sign of life counts this long; it renews it every 2 s
local PROVISIONAL_MS = 1000  -- a lock handed over is confirmed within this, or passed on

local ALONE = {kind = 'x'}

local function want_of(text)
  if not text or text == 'x' then return ALONE end
  if text == 'r' then return {kind = 'r', text = text, count = 1, of = 0} end
  local count, of = text:match('^(%d+)/(%d+)$')
  return {kind = 'p', text = text, count = tonumber(count), of = tonumber(of)}
end

local function queue_exists()
  return redis.call('EXISTS', QUEUE) == 1
end

local function waiter_of(owner)
  local record = redis.call('HGET', WAITERS, owner)
  if not record then return nil end
  local stop = record:find('\n', 27, true)
  local channel, wanted = record:sub(27, stop - 1), nil
  local space = channel:find(' ', 1, true)
  if space then channel, wanted = channel:sub(1, space - 1), channel:sub(space + 1) end
  return {
    polls = record:sub(1, 1):lower() == 'p', uncounted = record:sub(1, 1) == 'b', sharded = record:sub(1, 1) == 'h',
    votes = record:sub(1, 1):match('%u') ~= nil, ttl = tonumber(record:sub(2, 12)),
    channel = channel, want = want_of(wanted), head = record:sub(1, 26), json = record:sub(stop + 1),
  }
end

local function keep_queue()
  redis.call('PEXPIRE', QUEUE, KEEP_MS)
  redis.call('PEXPIRE', WAITERS, KEEP_MS)
end

local function write_waiter(owner, head, channel, want, json)
  local wanted = want and want.text and ' ' .. want.text or ''
  redis.call('HSET', WAITERS, owner, head .. channel .. wanted .. '\n' .. json)
end

-- The place is the next one, or with `ticket` that of the ticket, which then tells since when it waits.
local function enqueue(owner, mode, ttl, channel, json, ticket, want)
  if not redis.call('ZSCORE', QUEUE, owner) then
    redis.call('ZADD', QUEUE, ticket or redis.call('HINCRBY', WAITERS, '+', 1), owner)
    redis.call('HINCRBY', WAITERS, '#' .. channel, 1)
  end
  write_waiter(owner, string.format('%s%011.0f%014.0f', mode, ttl, ticket or now), channel, want, json)
  redis.call('HSET', WAITERS, '@' .. channel, string.format('%.0f', now + ALIVE_MS))
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

-- Tells a waiter that something became of it, and whether it heard.
local function tell(owner, waiter)
  local receivers
  if waiter.sharded then
    receivers = redis.pcall('SPUBLISH', LOCK .. ':' .. waiter.channel, 'g' .. owner)
  else
    receivers = redis.pcall('PUBLISH', waiter.channel, 'g' .. owner)
  end
  return type(receivers) == 'number' and (receivers > 0 or waiter.uncounted)
end

