-- Publishes a crop and keeps the camera's stream within its bounds, as one step.
--
-- KEYS: picture, stream, index (track -> newest entry), cameras, drops, outcome, bytes, then further pictures
-- ARGV: group, jpeg, TTL of pictures and outcome in seconds, bound, bound in bytes, camera, track, reason "superseded",
--       reason "queue full", then the further pictures' jpegs, then the entry's field names and values
-- Returns {entry id, superseded, dropped}; an empty id when this crop had been published before (a repeated call
-- whose first reply got lost), whatever became of it meanwhile.

local picture, stream, index, cameras, drops, bytes_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7]
local group, ttl, camera, track = ARGV[1], ARGV[3], ARGV[6], ARGV[7]

-- First write, and one that is refused when memory is full: then nothing at all has happened.
if not redis.call('SET', KEYS[6], 'queued', 'NX', 'EX', ttl) then
  return { '', 0, 0 }
end
redis.call('SET', picture, ARGV[2], 'EX', ttl)

local extras, size = #KEYS - 7, #ARGV[2]
for n = 1, extras do
  redis.call('SET', KEYS[7 + n], ARGV[9 + n], 'EX', ttl)
  size = size + #ARGV[9 + n]
end

local fields = { 'bytes', size }
for i = 10 + extras, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
local id = redis.call('XADD', stream, '*', unpack(fields))
redis.call('SADD', cameras, camera)

local info = group_of(stream, group)
local last = info['last-delivered-id']
local bytes = redis.call('INCRBY', bytes_key, size)

local function drop(entry, reason)
  bytes = remove_entry(stream, bytes_key, entry)
  redis.call('HINCRBY', drops, camera .. '|' .. reason, 1)
  for _, key in ipairs(pictures_of(entry)) do
    redis.call('DEL', key)
  end
  local key = field_of(entry, 'picture_key')
  if key then
    set_outcome(outcome_of(key), reason, ttl)
  end
  forget_track(index, field_of(entry, 'track'), entry[1])
end

local superseded = 0
local before = redis.call('HGET', index, track)
if before and is_after(before, last) and not is_pending(stream, group, before) then
  local found = redis.call('XRANGE', stream, before, before)
  if #found == 1 then
    drop(found[1], ARGV[8])
    superseded = 1
  end
end
redis.call('HSET', index, track, id)

local dropped = 0
local function drop_oldest()
  local entry = first_waiting(stream, group, last, false)
  if not entry or entry[1] == id then
    return false
  end
  drop(entry, ARGV[9])
  dropped = dropped + 1
  return true
end

for _ = 1, count_waiting(stream, info) - tonumber(ARGV[4]) do
  if not drop_oldest() then
    break
  end
end
if bytes > tonumber(ARGV[5]) then
  -- Entries that were deleted from outside are still in the sum: nothing is dropped because of them.
  bytes = sum_of_bytes(stream)
  redis.call('SET', bytes_key, bytes)
  while bytes > tonumber(ARGV[5]) and drop_oldest() do
  end
end

-- What was deleted from outside leaves its track in the index; look only when there is much of it.
if redis.call('HLEN', index) > redis.call('XLEN', stream) + 256 then
  local all = redis.call('HGETALL', index)
  for i = 1, #all, 2 do
    if #redis.call('XRANGE', stream, all[i + 1], all[i + 1]) == 0 then
      redis.call('HDEL', index, all[i])
    end
  end
end
return { id, superseded, dropped }
