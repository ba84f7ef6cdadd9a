// graphile-worker on Node, with its local queue and its batches of completed jobs.
import { load, run, stamp, url } from "./queued.mjs";

const { Logger, makeWorkerUtils, run: start } = await load("graphile-worker");
const logger = new Logger(() => () => {});
const options = { connectionString: url, logger };
const [concurrency, size] = [24, 500];

const connect = async () => {
  const utils = await makeWorkerUtils(options);
  await utils.migrate();
  return utils;
};

await run("graphile-worker", {
  left: "SELECT count(*) FROM graphile_worker._private_jobs",
  prefetch: `${size}`,
  setting: `concurrency ${concurrency}, local queue ${size}`,
  connect,
  send: (utils, number) => utils.addJob("noop", { number }),
  many: (utils, all) => utils.addJobs(all.map((number) => ({ identifier: "noop", payload: { number } }))),
  work: async () => {
    await connect();
    const worker = {
      connectionString: url, maxPoolSize: 10, concurrentJobs: concurrency, pollInterval: 2000, localQueue: { size },
      completeJobBatchDelay: 0, failJobBatchDelay: 0,
    };
    const taskList = { noop: async ({ number }) => stamp(number) };
    await start({ ...options, noHandleSignals: true, taskList, preset: { worker } });
  },
});
