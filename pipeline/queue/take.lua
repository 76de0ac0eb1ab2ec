-- Hands the next waiting crop of the first stream that has one to a consumer.
--
-- XREADGROUP could deliver in the stream's order only. Here the entry is chosen first and claimed with XCLAIM FORCE,
-- which adds it to the group's pending entries. Order within a camera: an expired entry (to be accounted for), else the
-- oldest, else, when the oldest has waited for longer than a share of its time, the newest.
--
-- KEYS: streams, the one whose turn it is first
-- ARGV: group, consumer, now (seconds), share of its time that a crop may wait before the newest goes first
-- Returns {n, id, fields} with n the number of the stream, or {0, {newest id of each stream}} when nothing waits.

local group, consumer, now, share = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local function is_under_pressure(entry)
  local time, deadline = tonumber(field_of(entry, 'time')), tonumber(field_of(entry, 'deadline'))
  if not time or not deadline or deadline <= now then
    return false
  end
  return now - time > share * (deadline - time)
end

local newest = {}
for n, stream in ipairs(KEYS) do
  local info = group_of(stream, group)
  newest[n] = '0-0'
  if info then
    local last = info['last-delivered-id']
    local entry = first_waiting(stream, group, last, false)
    local claim = { 'XCLAIM', stream, group, consumer, 0, '', 'RETRYCOUNT', 1, 'FORCE' }
    if entry then
      if is_under_pressure(entry) then
        entry = first_waiting(stream, group, last, true)
      else
        -- Everything up to the oldest waiting entry is held or done: the group has delivered up to here.
        claim[#claim + 1] = 'LASTID'
        claim[#claim + 1] = entry[1]
      end
      claim[6] = entry[1]
      redis.call(unpack(claim))
      return { n, entry[1], entry[2] }
    end
    newest[n] = flat_map(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
  end
end
return { 0, newest }
