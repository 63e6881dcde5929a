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
  const failures = new Map();

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
    if (event.data.reason) fail(event.data);
  }

  // Failures by target and reason: one reason often stops many candidates.
  function fail(data) {
    const key = data.target + "\n" + data.reason;
    if (!failures.has(key)) {
      const row = document.getElementById("failures").insertRow();
      failures.set(key, { row, times: 0 });
      fill(row, [data.target, data.reason, 0], [2]);
      document.getElementById("failed").hidden = false;
    }
    const entry = failures.get(key);
    entry.times += 1;
    entry.row.cells[2].textContent = entry.times;
  }

  // On a phone a row is a card, where each cell says what it is.
  function fill(row, texts, numbers) {
    const titles = row.closest("table").tHead.rows[0].cells;
    texts.forEach((text, i) => {
      const cell = row.insertCell();
      cell.textContent = text;
      cell.dataset.label = titles[i].textContent;
      if (numbers.includes(i)) cell.className = "number";
    });
  }

  // Whole plans that were timed: the table shows each, the fastest so far first.
  function lead(event) {
    if (event.stage !== "end_to_end" || !event.data.plan) return;
    timed.set(event.data.plan, event.data);
    const rows = [...timed.values()].sort((a, b) => (a.failure ? 1 : 0) - (b.failure ? 1 : 0) || a.latency_us - b.latency_us);
    const best = rows[0].failure ? null : rows[0].latency_us;
    document.getElementById("timed").hidden = false;
    plans.replaceChildren();
    for (const data of rows) {
      const row = plans.insertRow();
      if (data.failure) fill(row, [data.plan, data.partitions, data.failure, ""], [1]);
      else fill(row, [data.plan, data.partitions, show(data.latency_us), (data.latency_us / best).toFixed(2) + " ×"], [1, 2, 3]);
    }
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
  // A stream that was refused is not tried again: where the token has ended, the page leads to the sign-in.
  source.addEventListener("error", async () => {
    if (source.readyState === EventSource.CLOSED && (await fetch("/v1/targets")).status === 401) location.reload();
  });
})();
