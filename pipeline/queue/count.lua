-- Adds drops to their sums, once for each token: a call whose reply got lost may be repeated.
--
-- A crop that was dropped after an attempt to publish it whose reply got lost may have been published all the same. It is
-- counted here only when it was not, and then can't be published any more.
--
-- KEYS: drops, token, then the outcome of each crop in doubt
-- ARGV: how long the token is kept, how long the outcomes are (seconds), then for each crop in doubt its camera and the
--       reason of its drop, then pairs of field and number
-- Returns 1 when this call counted them, 0 when an earlier one had.

if not redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then
  return 0
end
local doubts = #KEYS - 2
for n = 1, doubts do
  local camera, reason = ARGV[1 + 2 * n], ARGV[2 + 2 * n]
  if redis.call('SET', KEYS[2 + n], reason, 'NX', 'EX', ARGV[2]) then
    redis.call('HINCRBY', KEYS[1], camera .. '|' .. reason, 1)
  end
end
for i = 3 + 2 * doubts, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
return 1
