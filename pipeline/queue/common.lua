-- Functions that the other scripts share. Only commands of Redis 7.0.
--
-- "Waiting" is an entry that no describer holds: it is in the stream but not among the group's pending ones. Waiting
-- entries may lie behind pending ones, because the freshest may be taken first.

local function flat_map(flat)
  local map = {}
  for i = 1, #flat, 2 do
    map[flat[i]] = flat[i + 1]
  end
  return map
end

-- What XINFO says of the group, or nil when there is no stream. A group that is gone (FLUSHALL, a restart without
-- persistence) is created again from the beginning of the stream, so that nothing in it is lost.
local function group_of(stream, group)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = flat_map(flat)
    if info['name'] == group then
      return info
    end
  end
  redis.call('XGROUP', 'CREATE', stream, group, '0')
  return { ['pending'] = 0, ['last-delivered-id'] = '0-0' }
end

local function is_pending(stream, group, id)
  return #redis.call('XPENDING', stream, group, id, id, 1) > 0
end

-- Whether the first id is younger than the second.
local function is_after(id, other)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
  if ms == other_ms then
    return tonumber(seq) > tonumber(other_seq)
  end
  return tonumber(ms) > tonumber(other_ms)
end

-- Who holds an entry, nil when nobody does.
local function holder_of(stream, group, id)
  if not group_of(stream, group) then
    return nil
  end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)
  return pending[1] and pending[1][2]
end

-- How many entries wait.
local function count_waiting(stream, info)
  return redis.call('XLEN', stream) - info['pending']
end

-- The waiting entry {id, fields} nearest to one end: walks past those that are held, of which there are few.
local function first_waiting(stream, group, last, newest)
  local low, high = '(' .. last, '+'
  while true do
    local found
    if newest then
      found = redis.call('XREVRANGE', stream, high, low, 'COUNT', 1)
    else
      found = redis.call('XRANGE', stream, low, high, 'COUNT', 1)
    end
    if #found == 0 then
      return nil
    end
    local id = found[1][1]
    if not is_pending(stream, group, id) then
      return found[1]
    end
    if newest then
      high = '(' .. id
    else
      low = '(' .. id
    end
  end
end

local function field_of(entry, name)
  local flat = entry[2]
  for i = 1, #flat, 2 do
    if flat[i] == name then
      return flat[i + 1]
    end
  end
  return nil
end

-- Keys of all pictures of an entry.
local function pictures_of(entry)
  local found = {}
  local key = field_of(entry, 'picture_key')
  if key then
    found[1] = key
  end
  local readable, extras = pcall(cjson.decode, field_of(entry, 'extra_keys') or '[]')
  for _, extra in ipairs(readable and type(extras) == 'table' and extras or {}) do
    found[#found + 1] = extra
  end
  return found
end

-- Forgets that a track's newest entry is this one.
local function forget_track(index, track, id)
  if track and redis.call('HGET', index, track) == id then
    redis.call('HDEL', index, track)
  end
end

-- Deletes an entry and takes its picture's bytes off the camera's sum, which is returned.
local function remove_entry(stream, bytes_key, entry)
  if redis.call('XDEL', stream, entry[1]) == 0 then
    return tonumber(redis.call('GET', bytes_key) or 0)
  end
  if redis.call('XLEN', stream) == 0 then
    redis.call('DEL', bytes_key)
    return 0
  end
  return redis.call('DECRBY', bytes_key, field_of(entry, 'bytes') or 0)
end

-- Bytes of the pictures that the stream's entries name.
local function sum_of_bytes(stream)
  local sum = 0
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
    sum = sum + tonumber(field_of(entry, 'bytes') or 0)
  end
  return sum
end

-- Key that says what became of the publication whose picture lies under this key.
local function outcome_of(picture)
  return (string.gsub(picture, '^ww:crop:', 'ww:outcome:'))
end

local function set_outcome(key, outcome, ttl)
  redis.call('SET', key, outcome, 'EX', ttl)
end
