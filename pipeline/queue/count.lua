-- Adds drops to their sums, once for each token: a call whose reply got lost may be repeated.
--
-- KEYS: drops, token
-- ARGV: how long the token is kept (seconds), then pairs of field and number
-- Returns 1 when this call counted them, 0 when an earlier one had.

if not redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then
  return 0
end
for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
return 1
