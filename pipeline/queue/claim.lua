-- Hands a consumer an entry whose holder gave no sign of life for too long.
--
-- Entries that were deleted from the stream while somebody held them (trimmed from outside) come back from XAUTOCLAIM as
-- bare ids; Redis 7 has taken them off the pending ones by then. They are counted and forgotten.
--
-- KEYS: drops, then for each camera its stream and its hash of failures
-- ARGV: group, consumer, idle limit in milliseconds, then for each camera its drop field "trimmed"
-- Returns {n, id, fields, deliveries}, or {0} when nothing is idle.

local group, consumer, idle = ARGV[1], ARGV[2], ARGV[3]

for n = 1, (#KEYS - 1) / 2 do
  local stream, failures = KEYS[2 * n], KEYS[2 * n + 1]
  local cursor = '0-0'
  while group_of(stream, group) do
    local reply = redis.call('XAUTOCLAIM', stream, group, consumer, idle, cursor, 'COUNT', 1)
    cursor = reply[1]
    local deleted = reply[3] or {}
    if #deleted > 0 then
      redis.call('HINCRBY', KEYS[1], ARGV[3 + n], #deleted)
      redis.call('HDEL', failures, unpack(deleted))
    end
    local entry = reply[2][1]
    if entry then
      local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)
      return { n, entry[1], entry[2], pending[1][4] }
    end
    if cursor == '0-0' then
      break
    end
  end
end
return { 0 }
