// The same for Node as queued.py is for Python. Packages are beside the Node that runs this, not beside this file.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const WARM = 20;
const PATIENCE = 10;
const folder = path.join(process.env.BENCH_PACKAGES, "node_modules");
const require = createRequire(folder + "/");
const stamps = process.env.BENCH_STAMPS;
const file = fs.openSync(stamps, "a");
const record = Buffer.alloc(16);

export const url = process.env.BENCH_URL;
export const load = (name) => import(require.resolve(name));

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const rest = (ms) => new Promise((go) => setTimeout(go, ms));
const seconds = (used) => Object.values(process.cpuUsage(used)).reduce((sum, each) => sum + each) / 1e6;
const numbers = (from, count) => Array.from({ length: count }, (_, i) => from + i);

export function stamp(number) {
  record.writeDoubleLE(now(), 0);
  record.writeUInt32LE(0, 8);
  record.writeUInt32LE(number, 12);
  fs.writeSync(file, record);
}

async function single({ connect, send }, count) {
  const context = await connect();
  for (const number of numbers(0, WARM)) await send(context, number);
  const began = now(), used = process.cpuUsage();
  for (const number of numbers(WARM, count)) await send(context, number);
  return { seconds: now() - began, began, cpu: seconds(used), timed: count, sent: WARM + count };
}

async function many({ connect, many: sendMany }, batches, size) {
  const context = await connect();
  await sendMany(context, numbers(0, size));
  const began = now(), used = process.cpuUsage();
  for (let batch = 1; batch <= batches; batch++) await sendMany(context, numbers(batch * size, size));
  return { seconds: now() - began, began, cpu: seconds(used), timed: batches * size, sent: (batches + 1) * size };
}

async function pickup({ connect, send }, count) {
  const context = await connect();
  const began = [], ended = [];
  for (const number of numbers(0, count)) {
    const before = fs.statSync(stamps).size;
    began.push(now());
    await send(context, number);
    ended.push(now());
    while (fs.statSync(stamps).size === before) {
      if (now() > ended[number] + PATIENCE) throw new Error("a job did not start");
      await rest(1);
    }
    await rest(5 + Math.random() * 5);
  }
  return { began, ended };
}

export async function run(name, peer) {
  const [command, ...counts] = process.argv.slice(2);
  if (command === "serve") {
    console.log("ready");
    return peer.work();
  }
  const { version } = JSON.parse(fs.readFileSync(path.join(folder, name, "package.json")));
  const { left, prefetch, setting } = peer;
  const answer = command === "info"
    ? { version, left, prefetch, setting, many: true }
    : await { single, many, pickup }[command](peer, ...counts.map(Number));
  process.stdout.write(JSON.stringify(answer) + "\n", () => process.exit(0));
}
