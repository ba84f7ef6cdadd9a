// bullmq on Node.
import { load, run, stamp, url } from "./queued.mjs";

const { Queue, Worker } = await load("bullmq");
const { hostname: host, port, password } = new URL(url);
const connection = { host, port: Number(port), password, maxRetriesPerRequest: null };
const opts = { removeOnComplete: true };
const concurrency = Number(process.env.BENCH_CONCURRENCY ?? 50);

async function work(job) {
  stamp(job.data.number);
  if (job.data.seconds) await new Promise((go) => setTimeout(go, job.data.seconds * 1000)); // a slow job, of bench/fleet.py
}

await run("bullmq", {
  left: "redis.call('LLEN', 'bull:bench:wait') + redis.call('LLEN', 'bull:bench:active')",
  prefetch: "0",
  setting: `concurrency ${concurrency}`,
  connect: async () => {
    const queue = new Queue("bench", { connection });
    await queue.waitUntilReady();
    return queue;
  },
  send: (queue, number) => queue.add("noop", { number }, opts),
  many: (queue, all) => queue.addBulk(all.map((number) => ({ name: "noop", data: { number }, opts }))),
  work: () => new Worker("bench", work, { connection, concurrency }),
});
