-- Ends a track message: acknowledged, deleted, and counted once when it could not be stored.
--
-- KEYS: stream, drops
-- ARGV: group, entry id, drop field or ""

local mine = group_of(KEYS[1], ARGV[1]) and redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) or 0
redis.call('XDEL', KEYS[1], ARGV[2])
if mine == 1 and ARGV[3] ~= '' then
  redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
end
return mine
