
-- What the scripts of a lock by majority know of votes. This text stands behind holders.lua. A vote is a lock that was
-- handed over and not confirmed yet: it ends by itself after a second, and is known by "held since 0".

-- The vote that a held lock's record is; nil when it is a grant.
local function vote_in(lock)
  if lock.since ~= 0 then return nil end
  local readable, particulars = pcall(cjson.decode, lock.json)
  local vote = readable and type(particulars) == 'table' and particulars.vote
  local ticket = type(vote) == 'string' and tonumber(vote:sub(2))
  return ticket and {mode = vote:sub(1, 1), ticket = ticket, channel = particulars.channel}
end

-- Takes a vote back. Its holder gets its place back, and finds out when it confirms or asks again.
local function withdraw(lock, vote)
  enqueue(lock.owner, vote.mode, lock.ttl, vote.channel, lock.json, vote.ticket)
end

