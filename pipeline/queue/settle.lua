-- Ends a crop's way through the queue as one step: acknowledged, deleted, its picture and its book-keeping gone, and,
-- when it was not described, counted once and kept as a dead letter with its picture if so asked. Doing it again changes
-- nothing.
--
-- Words count whoever brings them. That a crop is dropped, only its holder may say: another describer that has claimed
-- it meanwhile may still find words for it. Words that come after a drop was counted take that count back, so that each
-- crop ends as described or as one counted drop, never as both.
--
-- KEYS: stream, index (track -> newest entry), failures, picture, drops, dead letters, outcome, bytes, then further
--       pictures
-- ARGV: group, consumer, entry id, camera, track, reason of the drop or "", TTL of the outcome in seconds, bound of the
--       dead letters, their TTL in seconds, then field names and values of the dead letter, or nothing
-- Returns 1 when this call settled it, 0 when it was settled before (or flushed, or is another's to drop).

local stream, picture, drops, dead, outcome = KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local group, id, camera, reason, ttl = ARGV[1], ARGV[3], ARGV[4], ARGV[6], ARGV[7]
local NO_DROP = { queued = true, described = true }

local holder = holder_of(stream, group, id)
if reason ~= '' and holder ~= ARGV[2] then
  return 0
end

if holder then
  redis.call('XACK', stream, group, id)
end
for _, entry in ipairs(redis.call('XRANGE', stream, id, id)) do
  remove_entry(stream, KEYS[8], entry)
end
redis.call('HDEL', KEYS[3], id)
forget_track(KEYS[2], ARGV[5], id)

if reason == '' then
  local before = redis.call('GET', outcome)
  if before and not NO_DROP[before] then
    redis.call('HINCRBY', drops, camera .. '|' .. before, -1)
  end
  if before or holder then
    set_outcome(outcome, 'described', ttl)
  end
else
  redis.call('HINCRBY', drops, camera .. '|' .. reason, 1)
  set_outcome(outcome, reason, ttl)
  if #ARGV > 9 then
    local fields = {}
    for i = 10, #ARGV do
      fields[#fields + 1] = ARGV[i]
    end
    local letter = redis.call('XADD', dead, '*', unpack(fields))
    if redis.call('EXISTS', picture) == 1 then
      redis.call('RENAME', picture, dead .. ':' .. letter)
      redis.call('EXPIRE', dead .. ':' .. letter, ARGV[9])
    end
    for n = 9, #KEYS do
      redis.call('EXPIRE', KEYS[n], ARGV[9])
    end
    while redis.call('XLEN', dead) > tonumber(ARGV[8]) do
      local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
      redis.call('XDEL', dead, oldest[1])
      redis.call('DEL', dead .. ':' .. oldest[1], unpack(pictures_of(oldest)))
    end
  end
end
redis.call('DEL', picture)
if #ARGV <= 9 and #KEYS > 8 then
  redis.call('DEL', unpack(KEYS, 9))
end
return holder and 1 or 0
