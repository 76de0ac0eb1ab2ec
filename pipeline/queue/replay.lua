-- Queues a dead letter's crop once more: what was counted as dropped is on its way again.
--
-- KEYS: dead letters, the letter's picture, picture, stream, cameras, drops, outcome, bytes, then further pictures
-- ARGV: letter, drop field, TTL of pictures and outcome in seconds, camera, then the entry's field names and values
-- Returns 1, 0 when there is no such letter (any more), -1 when its picture is gone (the letter stays).

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  return 0
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  return -1
end
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
set_outcome(KEYS[7], 'queued', ARGV[3])
redis.call('HINCRBY', KEYS[6], ARGV[2], -1)
local size = redis.call('STRLEN', KEYS[3])
for n = 9, #KEYS do
  redis.call('EXPIRE', KEYS[n], ARGV[3])
  size = size + redis.call('STRLEN', KEYS[n])
end
local fields = { 'bytes', size }
for i = 5, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
redis.call('XADD', KEYS[4], '*', unpack(fields))
redis.call('SADD', KEYS[5], ARGV[4])
redis.call('INCRBY', KEYS[8], size)
return 1
