-- Extends many leases at one server of several. Never creates a record.
--
-- A record may be one that a lost round left, of the same claim. It is extended like any other, and becomes one of the round that
-- was won: what gives the lost round back, however late, must not take it away then, since it counts from now on.
--
-- KEYS     one lock for each lease
-- ARGV     for each lease: owner value, TTL in ms, number of the round that was won (0 when it is not known)
-- Replies  as of renew.lua: 'renewed', 'persisted', 'deleted', 'taken' or 'foreign'
-- A key that cannot be read disturbs no other.

local function renew(key, owner, ttl, round)
  local value = redis.pcall('GET', key)
  if not value then return 'deleted' end
  if type(value) == 'table' or not is_ours(value) then return 'foreign' end
  local holder = value:sub(3, 42)
  if holder == NOBODY then return 'deleted' end
  if holder ~= owner then return 'taken' end
  local persisted, of_lost = redis.call('PTTL', key) == -1, tonumber(value:sub(68, 81)) < round
  if of_lost then
    value = value:sub(1, 67) .. string.format('%014.0f', round) .. value:sub(82)
  end
  if value:sub(2, 2) == 'q' then
    redis.call('SET', key, ending(value, now + ttl), 'PX', string.format('%.0f', math.max(ttl, KEEP_MS)))
  elseif of_lost then
    redis.call('SET', key, value, 'PX', string.format('%.0f', ttl))
  else
    redis.call('PEXPIRE', key, string.format('%.0f', ttl))
  end
  return persisted and 'persisted' or 'renewed'
end

local replies = {}
for i, key in ipairs(KEYS) do
  replies[i] = renew(key, ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]))
end
return replies
