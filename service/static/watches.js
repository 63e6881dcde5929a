// The history of each watch: latency here by the yardstick, and that of every other environment by its ratio.
"use strict";
(() => {
  const { theme, onThemeChange } = window.collageColors;
  const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
  // Environments are no targets, so they have none of their colors.
  const COLORS = [["--ink", "ink"], ["--t6", "c6"], ["--t5", "c5"], ["--t7", "c7"]];
  const color = (i) => COLORS[i && 1 + (i - 1) % 3];

  // Times of different days do not compare: each is that over the yardstick, at the yardstick's usual speed.
  function lines(runs) {
    const own = runs.filter((run) => run.latency_us && run.over_yardstick);
    if (!own.length) return null;
    const yardstick = median(own.map((run) => median(run.latency_us) / median(run.over_yardstick)));
    const jobs = [...new Set(runs.map((run) => run.job))];
    const here = new Map(own.map((run) => [run.job, median(run.over_yardstick) * yardstick / 1000]));
    const at = jobs.map((job) => Date.parse(runs.find((run) => run.job === job).created_at) / 1000);
    const found = [["this server", jobs.map((job) => here.get(job) ?? null)]];
    for (const name of new Set(runs.map((run) => run.environment))) {
      if (name === "this one") continue;
      const ratios = new Map(runs.filter((run) => run.environment === name && run.ratio).map((run) => [run.job, run.ratio]));
      found.push([name, jobs.map((job) => here.has(job) && ratios.has(job) ? here.get(job) * ratios.get(job) : null)]);
    }
    return { at, found };
  }

  function draw(box, data) {
    box.replaceChildren();
    if (!data || !box.clientWidth) return;
    const axis = { stroke: theme("--soft"), grid: { stroke: theme("--line"), width: 1 }, ticks: { stroke: theme("--line") }, font: "12px system-ui" };
    const room = (_, low, high) => { const by = (high - low || high) * 0.2; return [Math.max(0, low - by), high + by]; };
    new uPlot({
      width: box.clientWidth, height: 220, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { y: { range: room } },
      axes: [{ ...axis, size: 44 }, { ...axis, label: "ms", labelSize: 18, labelFont: "12px system-ui", size: 64 }],
      series: [{}, ...data.found.map(([label], i) => ({ label, stroke: theme(color(i)[0]), width: 2, dash: i ? [6, 4] : [], spanGaps: true, points: { show: true, size: 7 } }))],
    }, [data.at, ...data.found.map(([, line]) => line)], box);
    const legend = box.nextElementSibling;
    legend.replaceChildren();
    data.found.forEach(([label], i) => {
      const item = document.createElement("li"), swatch = document.createElement("span");
      swatch.className = `swatch ${color(i)[1]}`;
      item.append(swatch, label);
      legend.append(item);
    });
    const note = document.createElement("li");
    note.className = "soft";
    note.textContent = "at the usual speed of this machine";
    legend.append(note);
    box.dataset.ready = "true";
  }

  for (const box of document.querySelectorAll("[data-history]")) {
    let data = null;
    fetch(box.dataset.history).then((answer) => answer.json()).then((said) => { data = lines(said.runs || []); draw(box, data); });
    addEventListener("resize", () => draw(box, data));
    onThemeChange(() => draw(box, data));
  }
})();
