-- Publishes a crop and keeps the camera's stream within its bound, as one step.
--
-- KEYS: picture, stream, index (track -> newest entry), cameras, drops, then further pictures
-- ARGV: group, jpeg, picture TTL in seconds, bound, camera, track, drop field "superseded", drop field "queue full",
--       then the further pictures' jpegs, then the entry's field names and values
-- Returns {entry id, superseded, dropped}; an empty id when this crop had been published before (a repeated call
-- whose first reply got lost).

local picture, stream, index, cameras, drops = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, track = ARGV[1], ARGV[6]

-- First write, and one that is refused when memory is full: then nothing at all has happened.
if not redis.call('SET', picture, ARGV[2], 'NX', 'EX', ARGV[3]) then
  return { '', 0, 0 }
end

local extras = #KEYS - 5
for n = 1, extras do
  redis.call('SET', KEYS[5 + n], ARGV[8 + n], 'EX', ARGV[3])
end

local fields = {}
for i = 9 + extras, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
local id = redis.call('XADD', stream, '*', unpack(fields))
redis.call('SADD', cameras, ARGV[5])

local info = group_of(stream, group)
local last = info['last-delivered-id']

local function remove(entry, drop_field)
  redis.call('XDEL', stream, entry[1])
  redis.call('HINCRBY', drops, drop_field, 1)
  for _, key in ipairs(pictures_of(entry)) do
    redis.call('DEL', key)
  end
  forget_track(index, field_of(entry, 'track'), entry[1])
end

local superseded = 0
local before = redis.call('HGET', index, track)
if before and is_after(before, last) and not is_pending(stream, group, before) then
  local found = redis.call('XRANGE', stream, before, before)
  if #found == 1 then
    remove(found[1], ARGV[7])
    superseded = 1
  end
end
redis.call('HSET', index, track, id)

local dropped = 0
for _ = 1, count_waiting(stream, info) - tonumber(ARGV[4]) do
  local entry = first_waiting(stream, group, last, false)
  if not entry then
    break
  end
  remove(entry, ARGV[8])
  dropped = dropped + 1
end
return { id, superseded, dropped }
