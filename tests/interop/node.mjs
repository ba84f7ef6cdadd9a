// BullMQ on Node, told what to do by lines of JSON: {id, call, ...} comes in; {id, value} or {id, error}, and what it
// hears meanwhile, {heard: [queue, event, fields]}, go out. It ends when its standard input does.
import { AsyncLocalStorage } from "node:async_hooks";
import fs from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, version, url, prefix] = process.argv.slice(2);
const bullmq = createRequire(`${folder}/`)(`bullmq${version}`);
const { hostname: host, port, password } = new URL(url);
const options = { connection: { host, port: Number(port), password, maxRetriesPerRequest: null }, prefix };
const opened = {};
const context = new AsyncLocalStorage();
const span = { setAttributes() {}, setAttribute() {}, addEvent() {}, recordException() {}, end() {}, setSpanOnContext: (held) => held };
const telemetry = { // whose contexts are what BullMQ carries for them
  tracer: { startSpan: () => span },
  contextManager: {
    active: () => context.getStore() ?? "", with: (held, go) => context.run(held, go),
    getMetadata: (held) => held, fromMetadata: (_, carried) => carried,
  },
};

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const rest = (seconds) => new Promise((go) => setTimeout(go, seconds * 1000));
const shown = (found) => found instanceof bullmq.Job ? found.id : Array.isArray(found) ? found.map(shown) : found;
const tree = ({ job, children }) => ({ id: job.id, children: (children ?? []).map(tree) });

function open(kind, name, make) {
  const key = `${kind} ${name}`;
  if (!opened[key]) {
    opened[key] = make();
    opened[key].on("error", (error) => say({ trouble: error.message }));
  }
  return opened[key];
}

const queue = (name) => open("queue", name, () => new bullmq.Queue(name, options));

function note(journal, what, job) {
  const seconds = Number(process.hrtime.bigint()) / 1e9; // the clock that Python calls monotonic
  if (journal) fs.appendFileSync(journal, `${what} ${job.id} ${job.attemptsStarted} ${process.pid} ${seconds.toFixed(6)}\n`);
}

// What a job's data asks for: its handler in Python is `body` in sides.py.
async function processed(journal, job, token) {
  const { seconds, fails, fatal, progress, log, value, later } = job.data;
  note(journal, "start", job);
  if (options.telemetry) say({ carried: [job.id, context.getStore() ?? ""] });
  say({ ran: [job.queueName, job.id, job.name, job.attemptsStarted] });
  if (progress !== undefined) await job.updateProgress(progress);
  if (seconds) await rest(seconds);
  note(journal, "end", job);
  if (later) {
    await job.moveToDelayed(Date.now() + later, token);
    throw new bullmq.DelayedError();
  }
  if (fatal) throw new bullmq.UnrecoverableError(fatal);
  if (job.attemptsStarted <= (fails ?? 0)) throw new Error(`not yet, ${job.attemptsStarted}`);
  return job.data.children ? await job.getChildrenValues() : (value ?? null);
}

const calls = {
  queue: async ({ queue: name, method, args }) => shown(await queue(name)[method](...args)),
  trace: async () => void (options.telemetry = telemetry), // of whatever is opened from now on
  traced: async ({ queue: name, job, data, carried }) => context.run(carried, async () => (await queue(name).add(job, data)).id),
  job: async ({ queue: name, job, method, args }) => shown(await (await queue(name).getJob(job))[method](...args)),
  read: async ({ queue: name, job }) => {
    const { returnvalue, attemptsMade, failedReason, progress } = await queue(name).getJob(job);
    return { returnvalue, attemptsMade, failedReason, progress };
  },
  flow: async ({ flow }) => tree(await open("flow", "", () => new bullmq.FlowProducer(options)).add(flow)),
  listen: async ({ queue: name }) => {
    const all = { ...options, lastEventId: "0-0" }; // from now on would be from whenever it comes to listen
    const events = open("events", name, () => new bullmq.QueueEvents(name, all));
    const emit = events.emit.bind(events);
    events.emit = (event, ...args) => {
      if (!["error", "ready"].includes(event)) say({ heard: [name, event, Object(args[0]) === args[0] ? args[0] : {}] });
      return emit(event, ...args);
    };
    await events.waitUntilReady();
  },
  work: async ({ queue: name, journal, worker }) => {
    const make = () => new bullmq.Worker(name, (job, token) => processed(journal, job, token), { ...options, name: "node", ...worker });
    await open("worker", name, make).waitUntilReady();
  },
  leave: async ({ queue: name, force }) => {
    await opened[`worker ${name}`].close(force);
    delete opened[`worker ${name}`];
  },
  rest: async () => {
    const kept = Object.keys(opened).filter((key) => /^(worker|events) /.test(key));
    await Promise.all(kept.map((key) => opened[key].close(true)));
    for (const key of kept) delete opened[key];
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, call, ...given } = JSON.parse(line);
  calls[call](given).then(
    (value) => say({ id, value: value ?? null }),
    (error) => say({ id, error: error.message }),
  );
}
process.exit(0);
