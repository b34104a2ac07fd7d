-- Extends many leases, and confirms grants that were handed over. Never creates a record.
--
-- KEYS     one lock for each lease
-- ARGV     for each lease: owner value, TTL in ms
-- Replies  for each lease: 'renewed', 'persisted' (renewed, and the key had lost its expiry), 'deleted', 'taken',
--          'left out' (readers or permits hold it, and this is not among them), or 'foreign' (the key holds something
--          else)
-- A key that cannot be read disturbs no other.

-- One of several that hold beside each other, see holders.lua.
local function renew_beside(key, owner, ttl)
  local head = redis.pcall('HGET', key, '#')
  if type(head) ~= 'string' or not head:find('^1[rp]%d') then return 'foreign' end
  local record = redis.call('HGET', key, owner)
  if not record or end_of(record) <= now then return 'left out' end
  redis.call('HSET', key, owner, ending(record, now + ttl))
  if now + ttl < tonumber(head:sub(23, 36)) then
    redis.call('HSET', key, '#', head:sub(1, 22) .. string.format('%014.0f', now + ttl) .. owner)
  end
  return keep_crowd(key, ttl) and 'persisted' or 'renewed'
end

local function renew(key, owner, ttl)
  local value = redis.pcall('GET', key)
  if not value then return 'deleted' end
  if type(value) == 'table' then return renew_beside(key, owner, ttl) end
  if not is_ours(value) then return 'foreign' end
  local holder = value:sub(3, 42)
  if holder == NOBODY then return 'deleted' end
  if holder ~= owner then return 'taken' end
  local persisted = redis.call('PTTL', key) == -1
  if value:sub(2, 2) == 'q' then
    redis.call('SET', key, ending(value, now + ttl), 'PX', string.format('%.0f', math.max(ttl, KEEP_MS)))
  else
    redis.call('PEXPIRE', key, string.format('%.0f', ttl))
  end
  return persisted and 'persisted' or 'renewed'
end

local replies = {}
for i, key in ipairs(KEYS) do
  replies[i] = renew(key, ARGV[2 * i - 1], tonumber(ARGV[2 * i]))
end
return replies
