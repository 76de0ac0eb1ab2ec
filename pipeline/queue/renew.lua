-- Renews claims, each only while it is still this consumer's: a plain XCLAIM would take back what another has claimed.
--
-- KEYS: the stream of each held entry
-- ARGV: group, consumer, then the id of each held entry
-- Returns the numbers of the entries that are not this consumer's any more.

local lost = {}
for n, stream in ipairs(KEYS) do
  local id = ARGV[2 + n]
  local pending = {}
  if group_of(stream, ARGV[1]) then
    pending = redis.call('XPENDING', stream, ARGV[1], id, id, 1, ARGV[2])
  end
  if #pending == 1 then
    redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, id, 'JUSTID')
  else
    lost[#lost + 1] = n
  end
end
return lost
