// The partition graph: one node per partition, filled by its share of the time; a click opens it to its operators.
// The table below has a button for each partition, which does the same as a click.
"use strict";
(async () => {
  const box = document.getElementById("graph");
  if (!box) return;
  const at = (id) => document.getElementById(id);
  const answer = await fetch(box.dataset.url);
  if (!answer.ok) { at("graph-status").textContent = (await answer.json()).detail; return; }
  const data = await answer.json();
  const { of, theme, chip, latency, size, onThemeChange } = collageColors;
  const { fold, place, W, H } = collageLayout;
  const parts = new Map(data.partitions.map((part) => [part.id, part]));
  const sum = data.partitions.reduce((total, part) => total + (part.latency_us || 0), 0);
  const slowest = Math.max(0, ...data.partitions.map((part) => part.latency_us || 0)) || null;
  const share = (part) => sum && part.latency_us ? part.latency_us / sum : 0;
  const owner = new Map();
  for (const part of data.partitions) { part.fold = fold(part); for (const node of part.nodes) owner.set(String(node.id), { node, part }); }
  const details = collageDetails(data);
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  const mix = (color, background, by) => {
    const read = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
    const a = read(color), b = read(background);
    return "#" + a.map((value, i) => Math.round(value * by + b[i] * (1 - by)).toString(16).padStart(2, "0")).join("");
  };
  const style = () => [
    { selector: "node", style: { "shape": "round-rectangle", "width": "data(w)", "height": "data(h)", "label": "data(label)", "text-wrap": "wrap", "text-valign": "center",
      "font-size": 16, "line-height": 1.25, "color": theme("--ink"), "border-width": 2, "border-color": "data(color)", "background-color": theme("--raised"), "min-zoomed-font-size": 6 } },
    { selector: "node.part:childless", style: { "text-max-width": W - 16, "background-fill": "linear-gradient", "background-gradient-direction": "to-right",
      "background-gradient-stop-colors": (node) => node.data("stops"), "background-gradient-stop-positions": (node) => node.data("positions") } },
    { selector: "node:parent", style: { "text-valign": "top", "text-halign": "center", "text-margin-y": -4, "background-color": "data(color)", "background-opacity": 0.12, "padding": 16 } },
    { selector: "node.op", style: { "font-size": 11, "background-color": "data(color)", "color": theme("--paper"), "border-width": 0 } },
    { selector: "node.chosen", style: { "border-width": 4, "border-color": theme("--ink") } },
    { selector: "node.found", style: { "border-width": 4, "border-color": theme("--warn") } },
    { selector: "edge", style: { "width": 1.5, "line-color": theme("--soft"), "target-arrow-color": theme("--soft"), "target-arrow-shape": "triangle", "curve-style": "straight", "arrow-scale": 0.9 } },
    { selector: "edge[label]", style: { "label": "data(label)", "text-wrap": "wrap", "font-size": 11, "color": theme("--ink"), "text-background-color": theme("--paper"),
      "text-background-opacity": 0.9, "text-background-padding": 2, "min-zoomed-font-size": 7 } },
  ];
  const cy = cytoscape({ container: box, elements: [], maxZoom: 2, minZoom: 0.01, hideEdgesOnViewport: true, textureOnViewport: true, boxSelectionEnabled: false,
    autoungrabify: true, userPanningEnabled: false, userZoomingEnabled: false, style: style(), layout: { name: "preset" } });
  const minimap = collageMinimap(cy);
  const open = new Set();

  function elements() {
    const spots = place(data.partitions, open, box.clientWidth, box.clientHeight);
    const made = [];
    for (const part of data.partitions) {
      const { x, y } = spots.get(part.id);
      const count = part.nodes.length;
      const color = of(part.target);
      const time = part.latency_us == null ? "" : `\n${latency(part.latency_us, slowest)} · ${Math.round(share(part) * 100)} %`;
      const label = `${part.target}\n${count} operator${count === 1 ? "" : "s"}${time}`;
      const filled = Math.round(share(part) * 100);
      const tint = mix(color, theme("--raised"), 0.35);
      const common = { id: "p" + part.id, label, color, share: share(part), w: W, h: H, stops: `${tint} ${tint} ${theme("--raised")} ${theme("--raised")}`, positions: `0 ${filled} ${filled} 100` };
      if (!open.has(part.id)) { made.push({ data: common, position: { x, y }, classes: "part" }); continue; }
      made.push({ data: { ...common, label: label.replaceAll("\n", "  ·  ") }, classes: "part" });
      for (const node of part.nodes) {
        const inner = part.fold.at(node);
        made.push({ data: { id: "n" + node.id, parent: common.id, label: node.op, color, w: 124, h: 30 }, position: { x: x + inner.x, y: y + inner.y }, classes: "op" });
      }
      for (const [a, b] of part.edges) made.push({ data: { id: `n${a}-${b}`, source: "n" + a, target: "n" + b } });
    }
    for (const edge of data.edges) {
      const more = edge.tensors.length > 1 ? ` +${edge.tensors.length - 1}` : "";
      const facts = [edge.bytes == null ? "" : size(edge.bytes), edge.latency_us ? latency(edge.latency_us) : edge.latency_us === 0 ? "no copy" : ""].filter(Boolean);
      const bytes = facts.length ? `\n${facts.join(" · ")}` : "";
      made.push({ data: { id: `p${edge.from}-p${edge.to}`, source: "p" + edge.from, target: "p" + edge.to, label: edge.tensors[0] + more + bytes } });
    }
    return made;
  }

  function draw(fit) {
    box.style.height = "";
    const made = elements();
    cy.batch(() => { cy.elements().remove(); cy.add(made); });
    if (!open.size) shrink();
    cy.resize();
    if (fit) showAll();
    minimap.draw();
  }

  // A row of partitions leaves most of the box empty.
  function shrink() {
    const all = cy.elements().boundingBox();
    const needed = all.h * Math.min(1.2, (box.clientWidth - 48) / all.w) + 72;
    if (needed < box.clientHeight) box.style.height = `${Math.max(220, Math.ceil(needed))}px`;
  }

  // A few partitions would fill the box as giants: nothing grows beyond its own size.
  function showAll() {
    cy.fit(undefined, 24);
    if (cy.zoom() > 1.2) { cy.zoom(1.2); cy.center(); }
  }
  function go(to) { cy.animate({ fit: { eles: to, padding: 50 } }, { duration: still.matches ? 0 : 200 }); }
  function zoom(by) { cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } }); }

  function remember(key, value) {
    const said = new URLSearchParams(location.hash.slice(1));
    for (const name of ["partition", "node"]) said.delete(name);
    if (value != null) said.set(key, value);
    history.replaceState(null, "", "#" + said);
  }
  function mark() {
    for (const button of document.querySelectorAll("#partitions button")) button.setAttribute("aria-expanded", String(open.has(button.dataset.partition)));
  }
  function toggle(id) {
    const part = parts.get(id);
    if (open.has(id)) open.delete(id); else open.add(id);
    draw(!open.has(id));
    details.part(part, share(part));
    if (open.has(id)) go(cy.$id("p" + id));
    remember("partition", open.has(id) ? id : null);
    mark();
  }
  function choose(id) {
    const { node, part } = owner.get(id);
    if (!open.has(part.id)) { open.add(part.id); draw(false); mark(); }
    cy.$(".chosen").removeClass("chosen");
    cy.$id("n" + id).addClass("chosen");
    details.node(node, part);
    remember("node", node.name);
  }

  const rows = at("partitions");
  for (const part of data.partitions) {
    const row = rows.insertRow();
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Partition " + part.id;
    button.dataset.partition = part.id;
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => toggle(part.id));
    const bar = document.createElement("meter");
    bar.max = 1;
    bar.value = share(part);
    bar.setAttribute("aria-label", `${Math.round(share(part) * 100)} % of the time`);
    const shown = document.createElement("span");
    shown.append(bar, ` ${Math.round(share(part) * 100)} %`);
    const often = Object.entries(part.operators).slice(0, 4).map(([op, count]) => `${op} × ${count}`).join(", ");
    [button, chip(part.target), String(part.nodes.length), latency(part.latency_us, slowest), part.latency_us == null ? "–" : shown, often].forEach((content, i) => {
      const cell = row.insertCell();
      cell.append(content);
      cell.dataset.label = ["Partition", "Target", "Operators", "Time", "Share", "Most frequent"][i];
      if (i === 2 || i === 3) cell.className = "number";
    });
  }

  cy.on("tap", "node.part", (tap) => toggle(tap.target.id().slice(1)));
  cy.on("tap", "node.op", (tap) => { choose(tap.target.id().slice(1)); tap.stopPropagation(); });
  cy.on("tap", "edge", (tap) => {
    const edge = data.edges.find((each) => `p${each.from}-p${each.to}` === tap.target.id());
    if (edge) details.edge(edge);
  });

  // A page scrolls under wheel and finger unless the reader asks to move the graph, or holds Ctrl.
  const hand = at("graph-move");
  const coarse = matchMedia("(pointer: coarse)").matches;
  // Under a finger the library takes every touch, so a cover takes taps alone and the page scrolls.
  const cover = document.createElement("div");
  cover.className = "cover";
  box.after(cover);
  cover.addEventListener("click", (tap) => {
    const edge = box.getBoundingClientRect();
    const x = tap.clientX - edge.left, y = tap.clientY - edge.top;
    const under = cy.nodes().filter((node) => {
      const at = node.renderedBoundingBox({ includeLabels: false });
      return x >= at.x1 && x <= at.x2 && y >= at.y1 && y <= at.y2;
    });
    const hit = under.filter(".op").nonempty() ? under.filter(".op") : under;
    if (hit.nonempty()) hit[0].emit("tap");
  });
  function hold() {
    cover.hidden = hand.checked || !coarse;
    cy.userPanningEnabled(hand.checked);
    cy.userZoomingEnabled(hand.checked);
    box.classList.toggle("held", hand.checked);
  }
  hand.checked = !coarse && localStorage.getItem("collage-graph-move") === "1";
  hand.addEventListener("change", () => { localStorage.setItem("collage-graph-move", hand.checked ? "1" : "0"); hold(); });
  hold();
  if (!coarse) {
    cy.userPanningEnabled(true);
    hand.addEventListener("change", () => cy.userPanningEnabled(true));
  }
  box.addEventListener("wheel", (turn) => {
    if (!turn.ctrlKey || hand.checked) return;
    turn.preventDefault();
    const edge = box.getBoundingClientRect();
    cy.zoom({ level: cy.zoom() * Math.exp(-turn.deltaY / 300), renderedPosition: { x: turn.clientX - edge.left, y: turn.clientY - edge.top } });
  }, { passive: false });

  // Enter goes from one hit to the next.
  let hits = [], next = 0;
  at("graph-search").addEventListener("input", (input) => {
    const text = input.target.value.trim().toLowerCase();
    hits = text ? [...owner.values()].filter(({ node }) => node.op.toLowerCase().includes(text) || node.name.toLowerCase().includes(text)) : [];
    next = 0;
    at("graph-found").textContent = text ? `${hits.length} found${hits.length ? ", Enter shows" : ""}` : "";
    cy.$(".found").removeClass("found");
    for (const { node, part } of hits) cy.$id(open.has(part.id) ? "n" + node.id : "p" + part.id).addClass("found");
  });
  at("graph-search").addEventListener("keydown", (press) => {
    if (press.key !== "Enter" || !hits.length) return;
    press.preventDefault();
    const { node } = hits[next % hits.length];
    next += 1;
    choose(String(node.id));
    go(cy.$id("n" + node.id).closedNeighborhood());
    at("graph-found").textContent = `${(next - 1) % hits.length + 1} of ${hits.length}`;
  });

  at("graph-in").addEventListener("click", () => zoom(1.3));
  at("graph-out").addEventListener("click", () => zoom(1 / 1.3));
  at("graph-fit").addEventListener("click", showAll);
  at("graph-close").addEventListener("click", () => { open.clear(); draw(true); mark(); remember("partition", null); });
  const name = box.dataset.name.replace(/\.(onnx|zip)$/, "") || "graph";
  at("graph-svg").addEventListener("click", () => collageExport.svg(cy, name));
  at("graph-png").addEventListener("click", () => collageExport.png(cy, name));
  at("graph-link").addEventListener("click", async (click) => {
    await navigator.clipboard.writeText(location.href).catch(() => {});
    click.target.textContent = "Copied";
    setTimeout(() => { click.target.textContent = "Copy link"; }, 1500);
  });
  onThemeChange(() => { cy.style(style()); draw(false); });

  draw(true);
  const said = new URLSearchParams(location.hash.slice(1));
  const wanted = [...owner.values()].find(({ node }) => node.name === said.get("node"));
  if (wanted) { choose(String(wanted.node.id)); go(cy.$id("n" + wanted.node.id).closedNeighborhood()); }
  else if (parts.has(said.get("partition"))) toggle(said.get("partition"));
  at("graph-status").textContent = "";
  box.dataset.ready = "true";
  window.collageGraph = { cy, toggle, choose };
})();
