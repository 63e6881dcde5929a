// A job's events become numbers, a chart, groups of failures and a log: live, and as it was after the end.
"use strict";
(() => {
  const root = document.getElementById("live");
  const { of, theme, chip, onThemeChange, latency } = window.collageColors;
  const at = (id) => document.getElementById(id);
  const LOG_LINES = 500;
  const isLive = ["queued", "running"].includes(root.dataset.state);
  const limit = Number(root.dataset.limit);
  const counts = { measured: 0, infeasible: 0, events: 0, failures: 0 };
  const timed = new Map();
  const failures = new Map();
  const series = { at: [], best: [], singles: new Map(), end: 0 };
  let started = root.dataset.started ? Date.parse(root.dataset.started) : null;
  let told = null;
  let waiting = false;
  let chart = null;

  function say(when, text, bad) {
    const line = document.createElement("li");
    const time = document.createElement("span");
    time.className = "soft";
    time.textContent = started && when >= started ? `${((when - started) / 1000).toFixed(1)} s ` : "";
    line.append(time, text);
    if (bad) line.className = "bad";
    const log = at("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.append(line);
    while (log.childElementCount > LOG_LINES) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
    counts.events += 1;
    at("count-events").textContent = counts.events;
  }

  function fill(row, contents, numbers) {
    const titles = row.closest("table").tHead.rows[0].cells;
    contents.forEach((content, i) => {
      const cell = row.insertCell();
      cell.append(content);
      cell.dataset.label = titles[i].textContent;
      if (numbers.includes(i)) cell.className = "number";
    });
  }

  // A measurement says what it found: a latency, or the reason why there is none.
  function count(event) {
    if (event.stage !== "measure" || !("reason" in event.data)) return;
    const outcome = event.data.reason ? "infeasible" : "measured";
    counts[outcome] += 1;
    at(outcome).textContent = counts[outcome];
    if (event.data.reason) fail(event.data.target, event.data.reason);
  }

  // Failures by target and reason: one reason often stops many candidates.
  function fail(target, reason) {
    const key = target + "\n" + reason;
    if (!failures.has(key)) {
      const row = at("failures").insertRow();
      failures.set(key, { row, times: 0 });
      fill(row, [chip(target), reason, "0"], [2]);
      at("failed").hidden = false;
      if (at("failures-empty")) at("failures-empty").hidden = true;
    }
    const entry = failures.get(key);
    entry.times += 1;
    entry.row.cells[2].textContent = entry.times;
    counts.failures += 1;
    at("count-failures").textContent = counts.failures;
  }

  // Whole plans that were timed: the fastest so far, and each single target beside it.
  function lead(event, when) {
    if (event.stage !== "end_to_end" || !event.data.plan) return;
    timed.set(event.data.plan, event.data);
    if (event.data.failure) fail(event.data.targets.join(" + "), event.data.failure);
    const ok = [...timed.values()].filter((each) => each.latency_us != null).sort((a, b) => a.latency_us - b.latency_us);
    if (ok.length) {
      const best = ok[0];
      at("best").replaceChildren(latency(best.latency_us));
      series.at.push(started ? (when - started) / 1000 : 0);
      series.best.push(best.latency_us / 1000);
      for (const each of ok) if (each.partitions === 1 && !series.singles.has(each.targets[0])) series.singles.set(each.targets[0], []);
      for (const [target, line] of series.singles) {
        const single = ok.find((each) => each.partitions === 1 && each.targets[0] === target);
        while (line.length < series.at.length - 1) line.push(null);
        line.push(single ? single.latency_us / 1000 : null);
      }
      later();
    }
    table(ok);
  }

  function table(ok) {
    at("count-plans").textContent = timed.size;
    const body = at("plans");
    if (!body) return;
    at("plans-empty").hidden = true;
    at("timed").hidden = false;
    const failed = [...timed.values()].filter((each) => each.latency_us == null);
    body.replaceChildren();
    for (const each of [...ok, ...failed]) {
      const targets = document.createElement("span");
      for (const target of new Set(each.targets)) targets.append(chip(target), " ");
      const result = each.latency_us == null ? [each.failure || "not timed", ""]
        : [latency(each.latency_us), (each.latency_us / ok[0].latency_us).toFixed(2) + " ×"];
      fill(body.insertRow(), [each.plan, targets, String(each.partitions), ...result], [2, 3, 4]);
    }
  }

  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  // Single targets are dashed; the best plan is one strong line in steps.
  function draw() {
    const box = at("progress-chart");
    if (!box || !series.at.length || !box.clientWidth) return;
    at("progress-empty").hidden = true;
    if (chart) chart.destroy();
    const targets = [...series.singles.keys()];
    // The last values go on to the end, or to now.
    const end = Math.max(series.end, isLive && started ? (Date.now() - started) / 1000 : 0);
    const on = (line) => [...line, line[line.length - 1] ?? null];
    const axis = { stroke: theme("--soft"), grid: { stroke: theme("--line"), width: 1 }, ticks: { stroke: theme("--line") }, font: "12px system-ui" };
    const stepped = uPlot.paths.stepped({ align: 1 });
    chart = new uPlot({
      width: box.clientWidth, height: 260, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false, range: [0, end || 1] }, y: { range: (_, low, high) => bounds(low, high) } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => +tick.toPrecision(3)), label: "seconds", labelSize: 18, labelFont: "12px system-ui", size: 34 }, { ...axis, label: "ms", labelSize: 18, labelFont: "12px system-ui", size: 56 }],
      series: [{}, ...targets.map((target) => ({ label: target, stroke: of(target), width: 1.5, dash: [6, 4], paths: stepped, points: { show: false } })),
        { label: "best", stroke: theme("--ink"), width: 3, paths: stepped, points: { show: false } }],
    }, [[...series.at, end], ...targets.map((target) => on(series.singles.get(target))), on(series.best)], box);
    const legend = at("progress-legend");
    legend.replaceChildren();
    const best = document.createElement("li");
    best.textContent = "━ best plan so far";
    legend.append(best);
    for (const target of targets) { const item = document.createElement("li"); item.append(chip(target)); legend.append(item); }
  }

  // A target many times slower than the best would press all other lines to the floor.
  function bounds(low, high) {
    const top = Math.min(high, 3 * Math.min(...series.best));
    const room = (top - low || top) * 0.15;
    return [Math.max(0, low - room), top + room];
  }

  const spell = (s) => s < 60 ? `${Math.max(0, Math.round(s))} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;

  // The server's own estimate where it gives one; else the time limit is the most it can take.
  function clock() {
    if (!started) return;
    const elapsed = (Date.now() - started) / 1000;
    at("elapsed").textContent = spell(elapsed);
    if (!limit) return;
    if (told) {
      const left = told.remaining == null ? null : told.remaining - (Date.now() - told.at) / 1000;
      at("remaining").textContent = left == null ? "–" : left > 1 ? "about " + spell(left) : "finishing";
      // The bar goes on between events as the remaining time does.
      if (told.share != null) at("bar").value = told.remaining ? 1 - (1 - told.share) * Math.max(0, left) / told.remaining : told.share;
      return;
    }
    at("remaining").textContent = elapsed < limit ? "at most " + spell(limit - elapsed) : "past the limit, finishing";
    at("bar").value = Math.min(0.98, elapsed / limit);
  }

  const source = new EventSource(root.dataset.events);
  source.addEventListener("progress", (message) => {
    const event = JSON.parse(message.data);
    const when = Date.parse(event.at);
    if (isLive) { at("stage").textContent = event.stage.replaceAll("_", " "); at("said").textContent = wording.of(event.message); }
    const given = { ...event.data, ...event };
    if (given.share_done != null || given.remaining_s != null) told = { share: given.share_done ?? null, remaining: given.remaining_s ?? null, at: when };
    if (event.stage === "trial" && at("trials")) at("trials").textContent = event.done;
    count(event);
    lead(event, when);
    say(when, wording.of(event.message), Boolean(event.data.reason || event.data.failure));
  });
  source.addEventListener("state", (message) => {
    const event = JSON.parse(message.data);
    const when = Date.parse(event.at);
    if (event.state === "running") started = when;
    if (started) series.end = (when - started) / 1000;
    later();
    say(when, "job is " + event.state + (event.reason ? `: ${wording.of(event.reason)}` : ""), event.state === "failed");
    if (["done", "failed", "cancelled"].includes(event.state)) {
      source.close();
      if (isLive) location.reload();
      root.dataset.ended = "true";
    } else if (isLive) {
      at("state").textContent = event.state;
      at("state").className = "state " + event.state;
      at("bar").hidden = at("numbers").hidden = event.state === "queued";
      if (event.state === "running") at("said").textContent = "";
      if (event.state === "running" && at("stage").textContent === "waiting") at("stage").textContent = "starting";
    }
  });
  // A stream that was refused is not tried again: where the token has ended, the page leads to the sign-in.
  source.addEventListener("error", async () => {
    if (source.readyState === EventSource.CLOSED && (await fetch("/v1/targets")).status === 401) location.reload();
  });
  if (isLive) { clock(); setInterval(clock, 1000); }
  document.addEventListener("tab-opened", later);
  addEventListener("resize", later);
  onThemeChange(later);
})();
