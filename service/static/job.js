// A job live: server-sent events become a bar, counts and a log. The page is drawn anew by the server
// at each change of state, so nothing here has to know what a finished job looks like.
"use strict";
(() => {
  const root = document.querySelector("[data-events]");
  if (!root) return;
  const bar = document.getElementById("bar");
  const stage = document.getElementById("stage");
  const log = document.getElementById("log");
  const counts = { measured: 0, infeasible: 0 };
  const LOG_LINES = 500;
  const plans = document.getElementById("plans");
  const timed = new Map();

  function say(text, bad) {
    const line = document.createElement("li");
    line.textContent = text;
    if (bad) line.className = "bad";
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.append(line);
    while (log.childElementCount > LOG_LINES) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  // A measurement says what it found: a latency, or the reason why there is none.
  function count(event) {
    if (event.stage !== "measure" || !("reason" in event.data)) return;
    const outcome = event.data.reason ? "infeasible" : "measured";
    counts[outcome] += 1;
    document.getElementById(outcome).textContent = counts[outcome];
  }

  // Whole plans that were timed: the table shows each, the fastest so far first.
  function lead(event) {
    if (event.stage !== "end_to_end" || !event.data.plan) return;
    timed.set(event.data.plan, event.data);
    const rows = [...timed.values()].sort((a, b) => (a.failure ? 1 : 0) - (b.failure ? 1 : 0) || a.latency_us - b.latency_us);
    plans.replaceChildren(...rows.map((data) => {
      const row = document.createElement("tr");
      const shown = data.failure ? data.failure : show(data.latency_us);
      for (const text of [data.plan, data.partitions, shown]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    }));
    if (!rows[0].failure) document.getElementById("best").textContent = show(rows[0].latency_us);
  }

  function show(us) { return us >= 1000 ? (us / 1000).toFixed(2) + " ms" : us.toFixed(1) + " µs"; }

  const source = new EventSource(root.dataset.events);
  source.addEventListener("progress", (message) => {
    const event = JSON.parse(message.data);
    stage.textContent = event.stage.replaceAll("_", " ");
    if (event.total) { bar.max = event.total; bar.value = event.done; } else { bar.removeAttribute("value"); }
    count(event);
    lead(event);
    say(event.message, Boolean(event.data.reason));
  });
  source.addEventListener("state", (message) => {
    const event = JSON.parse(message.data);
    if (event.state === root.dataset.state) return;
    if (["done", "failed", "cancelled"].includes(event.state)) {
      source.close();
      location.reload();
    } else {
      root.dataset.state = event.state;
      const badge = document.getElementById("state");
      badge.textContent = event.state;
      badge.className = "state " + event.state;
      say("job is " + event.state);
    }
  });
})();
