-- Records a failure of an entry, for as long as it is this consumer's.
--
-- KEYS: stream, failures
-- ARGV: group, consumer, entry id
-- Returns how many were recorded, or -1 when the entry is not this consumer's any more.

if holder_of(KEYS[1], ARGV[1], ARGV[3]) ~= ARGV[2] then
  return -1
end
return redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
