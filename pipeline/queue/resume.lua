-- Hands a consumer an entry that it had been given before and doesn't hold (any more): what it had when it died, or what
-- it was given in a reply that got lost.
--
-- KEYS: drops, then for each camera its stream and its hash of failures
-- ARGV: group, consumer, for each camera its drop field "trimmed", then pairs: number of the camera, entry id that the
--       consumer knows it holds
-- Returns {n, id, fields, deliveries}, or {0} when nothing is left.

local group, consumer = ARGV[1], ARGV[2]
local cameras = (#KEYS - 1) / 2
local held = {}
for i = 3 + cameras, #ARGV, 2 do
  held[ARGV[i] .. ' ' .. ARGV[i + 1]] = true
end

for n = 1, cameras do
  local stream = KEYS[2 * n]
  local from = '-'
  while group_of(stream, group) do
    local page = redis.call('XPENDING', stream, group, from, '+', 100, consumer)
    for _, pending in ipairs(page) do
      local id = pending[1]
      if not held[n .. ' ' .. id] then
        -- An entry that was deleted from the stream leaves the pending ones here; it is counted and passed over.
        local claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)
        if claimed[1] then
          return { n, id, claimed[1][2], pending[4] + 1 }
        end
        redis.call('HINCRBY', KEYS[1], ARGV[2 + n], 1)
        redis.call('HDEL', KEYS[2 * n + 1], id)
      end
    end
    if #page < 100 then
      break
    end
    from = '(' .. page[#page][1]
  end
end
return { 0 }
