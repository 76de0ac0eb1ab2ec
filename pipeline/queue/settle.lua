-- Ends a crop's way through the queue: acknowledged, deleted, its picture and its book-keeping gone, and, when it was
-- not described, counted once and kept as a dead letter if so asked (its picture then stays until it expires). Doing it
-- again changes nothing.
--
-- KEYS: stream, index (track -> newest entry), failures, picture, drops, dead letters, then further pictures
-- ARGV: group, entry id, track, drop field or "", bound of the dead letters, then field names and values of the dead
--       letter, or nothing
-- Returns 1 when this call settled it, 0 when it had been settled (or flushed) before.

local stream, id = KEYS[1], ARGV[2]
local mine = 0
if group_of(stream, ARGV[1]) then
  mine = redis.call('XACK', stream, ARGV[1], id)
end
redis.call('XDEL', stream, id)
redis.call('HDEL', KEYS[3], id)
if #ARGV <= 5 then
  redis.call('DEL', KEYS[4], unpack(KEYS, 7))
end
forget_track(KEYS[2], ARGV[3], id)
if mine == 1 and ARGV[4] ~= '' then
  redis.call('HINCRBY', KEYS[5], ARGV[4], 1)
  if #ARGV > 5 then
    local fields = {}
    for i = 6, #ARGV do
      fields[#fields + 1] = ARGV[i]
    end
    redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[5], '*', unpack(fields))
  end
end
return mine
