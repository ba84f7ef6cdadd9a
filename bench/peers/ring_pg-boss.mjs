// pg-boss on Node, in batches, with its notifications.
import { load, run, stamp, url } from "./queued.mjs";

const { PgBoss } = await load("pg-boss");
const batchSize = 1000;

const connect = async () => {
  const boss = new PgBoss({ connectionString: url, useListenNotify: true });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue("bench", { notify: true });
  return boss;
};

await run("pg-boss", {
  left: "SELECT count(*) FROM pgboss.job WHERE state < 'completed' AND name = 'bench'",
  prefetch: `${batchSize}, a batch`,
  setting: `batches of ${batchSize}`,
  connect,
  send: (boss, number) => boss.send("bench", { number }),
  many: (boss, all) => boss.insert("bench", all.map((number) => ({ data: { number } }))),
  work: async () => {
    const boss = await connect();
    await boss.work("bench", { batchSize, burstWhenBatchFull: true }, async (jobs) => {
      for (const job of jobs) stamp(job.data.number);
    });
  },
});
