-- How much waits and is held in each stream.
--
-- KEYS: streams
-- ARGV: group
-- Returns for each stream {waiting, held, time of the oldest waiting crop or ""}.

local all = {}
for n, stream in ipairs(KEYS) do
  local info = group_of(stream, ARGV[1])
  if info then
    local oldest = first_waiting(stream, ARGV[1], info['last-delivered-id'], false)
    all[n] = { count_waiting(stream, info), info['pending'], oldest and field_of(oldest, 'time') or '' }
  else
    all[n] = { 0, 0, '' }
  end
end
return all
