// Keeps a page as it is now: what is marked data-live is fetched again when something happened, and now and then.
// Without this file every page still reads and steers.
(() => {
  "use strict";
  const quietly = 1500; // between two looks, however much happens
  const anyway = 8000; // without events
  const body = document.body;
  const word = document.getElementById("live-word");
  const state = document.getElementById("live");
  if (!body.dataset.events || !word || !document.querySelector("[data-live]")) return;

  const sources = [];
  let hears = 0;
  let last = Date.now();
  let waiting = null;
  let busy = false;

  function say(mode, text) {
    if (state.dataset.mode === mode) return;
    state.dataset.mode = mode;
    word.textContent = text;
  }

  function saidHow() {
    if (hears > 0) say("live", "Live");
    else say("poll", "Live, every few seconds");
  }

  function soon(delay) {
    if (waiting === null && !document.hidden) {
      waiting = setTimeout(look, Math.max(delay, quietly - (Date.now() - last)));
    }
  }

  async function look() {
    waiting = null;
    if (busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      const text = await answer.text();
      if (!answer.ok) throw new Error(String(answer.status));
      show(new DOMParser().parseFromString(text, "text/html"));
      saidHow();
    } catch {
      say("away", "The server does not answer");
    }
    busy = false;
    last = Date.now();
  }

  function show(page) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (fresh) morph(old, document.importNode(fresh, true));
    }
    tick();
  }

  // Changes only what differs, so that focus, selection and what is opened stay.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(fresh);
      return;
    }
    const opened = old.nodeName === "DETAILS" && old.open;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (old.nodeName === "DETAILS") old.open = opened || fresh.open;
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((node, place) => {
      if (place < before.length) morph(before[place], node);
      else old.append(node);
    });
    before.slice(after.length).forEach((node) => node.remove());
  }

  function listen() {
    if (!window.EventSource) return;
    for (const tenant of JSON.parse(body.dataset.tenants || "[]")) {
      const source = new EventSource(`${body.dataset.events}?tenant=${encodeURIComponent(tenant)}`);
      let open = false;
      const changed = (now) => {
        if (now !== open) {
          open = now;
          hears += now ? 1 : -1;
          saidHow();
        }
      };
      source.addEventListener("open", () => changed(true));
      source.addEventListener("error", () => changed(false));
      for (const name of ["job", "recurring", "gap"]) source.addEventListener(name, () => soon(150));
      sources.push({ source, changed });
    }
  }

  function deaf() {
    for (const { source, changed } of sources.splice(0)) {
      source.close();
      changed(false);
    }
  }

  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function span(seconds) {
    if (seconds < 10) return `${Math.round(seconds)} s`;
    let rest = Math.round(seconds);
    const parts = [];
    for (const [size, unit] of units) {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count) parts.push(`${count} ${unit}`);
      else if (parts.length) break;
      if (parts.length === 2) break;
    }
    return parts.join(" ");
  }

  function tick() {
    for (const each of document.querySelectorAll("time[data-relative]")) {
      const seconds = (Date.parse(each.dateTime) - Date.now()) / 1000;
      const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
      if (each.textContent !== text) each.textContent = text;
    }
  }

  document.addEventListener("visibilitychange", () => {
    deaf();
    if (!document.hidden) {
      listen();
      soon(0);
    }
  });
  addEventListener("pagehide", deaf);
  const picked = document.getElementById("tenant");
  if (picked) picked.addEventListener("change", () => picked.form.requestSubmit());
  listen();
  saidHow();
  setInterval(tick, 1000);
  setInterval(() => soon(0), anyway);
})();
