-- A list for each level and tenant, and for each level a sorted set of tenants by their turn.
local function put()
  local lists = {}
  for i = 1, #ARGV, 5 do
    local key = ARGV[i + 1] .. ':' .. ARGV[i + 2]
    lists[key] = lists[key] or {}
    table.insert(lists[key], ARGV[i + 3])
  end
  for key, entries in pairs(lists) do
    local level, tenant = string.sub(key, 1, 1), string.sub(key, 3)
    local turns = P .. 'turns:' .. level
    if redis.call('LPUSH', P .. 'waiting:' .. key, unpack(entries)) == #entries then
      local first = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2]
      redis.call('ZADD', turns, first or 0, tenant)
    end
  end
end

local function take(n)
  local taken = {}
  for level = 0, 4 do
    local turns = P .. 'turns:' .. level
    while #taken < n do
      local first = redis.call('ZRANGE', turns, 0, 1, 'WITHSCORES')
      if #first == 0 then break end
      local many = n - #taken
      if #first == 4 then
        many = math.min(many, math.max(1, math.floor(tonumber(first[4]) - tonumber(first[2])) + 1))
      end
      local key = P .. 'waiting:' .. level .. ':' .. first[1]
      local found = redis.call('RPOP', key, many) or {}
      for _, entry in ipairs(found) do taken[#taken + 1] = entry end
      if #found < many or redis.call('EXISTS', key) == 0 then
        redis.call('ZREM', turns, first[1])
      else
        redis.call('ZINCRBY', turns, #found, first[1])
      end
    end
    if #taken >= n then break end
  end
  return taken
end
