-- Acknowledges tickets, gives them back or extends their time, each only for the worker who has it.
--
-- KEYS[1]  the free ones, a list
-- KEYS[2]  those handed out, by the end of their time in milliseconds on the server's clock
-- KEYS[3]  who has them, a hash
-- KEYS[4]  how often each was handed out, a hash
-- ARGV[1]  the worker
-- ARGV[2]  'done', 'back', or for how long from now in milliseconds
-- ARGV[3…] the tickets
--
-- Replies those that were the worker's. Atomic.

local ours = {}
for place = 3, #ARGV do
    local ticket = ARGV[place]
    if redis.call('HGET', KEYS[3], ticket) == ARGV[1] then
        ours[#ours + 1] = ticket
        if ARGV[2] == 'done' or ARGV[2] == 'back' then
            redis.call('ZREM', KEYS[2], ticket)
            redis.call('HDEL', KEYS[3], ticket)
            if ARGV[2] == 'done' then
                redis.call('HDEL', KEYS[4], ticket)
            else
                redis.call('LPUSH', KEYS[1], ticket)
            end
        else
            local time = redis.call('TIME')
            redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ticket)
        end
    end
end
return ours
