-- One list for each level: the order ignores tenants.
local function put()
  local lists = {}
  for i = 1, #ARGV, 5 do
    local level = ARGV[i + 1]
    lists[level] = lists[level] or {}
    table.insert(lists[level], ARGV[i + 3])
  end
  for level, entries in pairs(lists) do redis.call('LPUSH', P .. 'waiting:' .. level, unpack(entries)) end
end

local function take(n)
  local taken = {}
  for level = 0, 4 do
    if #taken >= n then break end
    local found = redis.call('RPOP', P .. 'waiting:' .. level, n - #taken)
    for _, entry in ipairs(found or {}) do taken[#taken + 1] = entry end
  end
  return taken
end
