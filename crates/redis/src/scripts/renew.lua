-- Extends many leases, and confirms grants that were handed over. Never creates a record.
--
-- KEYS     one lock for each lease
-- ARGV     for each lease: owner value, TTL in ms
-- Replies  for each lease: 'renewed', 'persisted' (renewed, and the key had lost its expiry), 'deleted', 'taken',
--          or 'foreign' (the key holds something else)
-- A key that cannot be read disturbs no other.

local function renew(key, owner, ttl)
  local value = redis.pcall('GET', key)
  if not value then return 'deleted' end
  if type(value) == 'table' or not is_ours(value) then return 'foreign' end
  local holder = value:sub(3, 42)
  if holder == NOBODY then return 'deleted' end
  if holder ~= owner then return 'taken' end
  local persisted = redis.call('PTTL', key) == -1
  if value:sub(2, 2) == 'q' then
    local renewed = value:sub(1, 42) .. string.format('%014.0f', now + ttl) .. value:sub(57)
    redis.call('SET', key, renewed, 'PX', string.format('%.0f', math.max(ttl, KEEP_MS)))
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
