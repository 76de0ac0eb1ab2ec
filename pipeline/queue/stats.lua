-- How much waits and is held in each stream, and by whom.
--
-- KEYS: for each camera its stream and its sum of bytes
-- ARGV: group
-- Returns for each camera {waiting, held, time of the oldest waiting crop or "", bytes, {consumer, held, idle ms, ...}}.

local all = {}
for n = 1, #KEYS / 2 do
  local stream = KEYS[2 * n - 1]
  local info = group_of(stream, ARGV[1])
  if info then
    local oldest = first_waiting(stream, ARGV[1], info['last-delivered-id'], false)
    local consumers = {}
    for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, ARGV[1])) do
      local consumer = flat_map(flat)
      consumers[#consumers + 1] = consumer['name']
      consumers[#consumers + 1] = consumer['pending']
      consumers[#consumers + 1] = consumer['idle']
    end
    all[n] = {
      count_waiting(stream, info),
      info['pending'],
      oldest and field_of(oldest, 'time') or '',
      tonumber(redis.call('GET', KEYS[2 * n]) or 0),
      consumers,
    }
  else
    all[n] = { 0, 0, '', 0, {} }
  end
end
return all
