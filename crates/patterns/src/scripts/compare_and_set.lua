-- Writes values if all keys hold what is expected.
--
-- KEYS     the keys, in one slot
-- ARGV     for each key in turn: '+' and the value it must hold or '-' for none, then the same for what it shall hold
--
-- Replies 1 when written; 0 when something else was there, and nothing was written.
-- Atomic: comparison and writes.

for i, key in ipairs(KEYS) do
    local has = redis.call('GET', key)
    if (has and '+' .. has or '-') ~= ARGV[2 * i - 1] then return 0 end
end
for i, key in ipairs(KEYS) do
    local new = ARGV[2 * i]
    if new == '-' then
        redis.call('DEL', key)
    elseif new ~= ARGV[2 * i - 1] then
        redis.call('SET', key, string.sub(new, 2), 'KEEPTTL')
    end
end
return 1
