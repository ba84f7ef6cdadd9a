-- Part of some: whether any worker holds a job, ours or not.
local function is_held(uuid)
  for _, name in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
    if try('SISMEMBER', held_by(name), uuid) == 1 then return true end
  end
  return false
end
