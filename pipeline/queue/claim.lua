-- Hands a consumer an entry whose holder gave no sign of life for too long.
--
-- Entries that were deleted from the stream while somebody held them (trimmed from outside) come back from XAUTOCLAIM as
-- bare ids; Redis 7 has taken them off the pending ones by then. They are counted and forgotten. So are consumers that hold
-- nothing and were not heard of for long: a container has a new host name each time it is made.
--
-- KEYS: drops, then for each camera its stream and its hash of failures
-- ARGV: group, consumer, idle limit in milliseconds, idle limit of a consumer that holds nothing, then for each camera its
--       drop field "trimmed"
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
      redis.call('HINCRBY', KEYS[1], ARGV[4 + n], #deleted)
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
  if group_of(stream, group) then
    for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
      local other = flat_map(flat)
      if other['pending'] == 0 and other['idle'] > tonumber(ARGV[4]) and other['name'] ~= consumer then
        redis.call('XGROUP', 'DELCONSUMER', stream, group, other['name'])
      end
    end
  end
end
return { 0 }
