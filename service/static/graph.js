// The partition graph: one node per partition, colored by target; a click opens it to its operators.
// Places come from the server; this only draws. Keyboard: the list of partitions beside the picture
// has a button for each, which does the same as a click.
"use strict";
(async () => {
  const box = document.getElementById("graph");
  if (!box) return;
  const answer = await fetch(box.dataset.url);
  const status = document.getElementById("graph-status");
  if (!answer.ok) { status.textContent = (await answer.json()).detail; return; }
  const data = await answer.json();
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const targets = [...new Set(data.partitions.map((part) => part.target))].sort();
  const colorOf = (target) => color("--t" + (targets.indexOf(target) % 8));
  const X = 260, Y = 110, INNER_X = 150, INNER_Y = 56;

  const cy = cytoscape({
    container: box,
    elements: [],
    maxZoom: 1.5,
    hideEdgesOnViewport: true,
    textureOnViewport: true,
    boxSelectionEnabled: false,
    style: [
      { selector: "node", style: {
        "shape": "round-rectangle", "width": "data(w)", "height": "data(h)", "label": "data(label)", "text-wrap": "wrap",
        "text-valign": "center", "font-size": 13, "color": color("--paper"),
        "background-color": "data(color)", "min-zoomed-font-size": 7 } },
      // Beside it, since edges come in above and go out below.
      { selector: "node:parent", style: { "text-valign": "center", "text-halign": "left", "text-margin-x": -8, "background-opacity": 0.15, "border-width": 2, "border-color": "data(color)",
        "color": color("--ink"), "padding": 14 } },
      { selector: "node.part:childless", style: { "text-max-width": "data(w)" } },
      { selector: "node.op", style: { "font-size": 11 } },
      { selector: "node.chosen", style: { "border-width": 4, "border-color": color("--ink") } },
      { selector: "edge", style: { "width": 1.5, "line-color": color("--soft"), "target-arrow-color": color("--soft"),
        "target-arrow-shape": "triangle", "curve-style": "straight", "arrow-scale": 0.9 } },
      { selector: "edge[label]", style: { "label": "data(label)", "font-size": 10, "color": color("--ink"),
        "text-background-color": color("--paper"), "text-background-opacity": 0.85, "text-background-padding": 2, "min-zoomed-font-size": 8 } },
    ],
    layout: { name: "preset" },
  });

  const open = new Set();

  // Deep partitions are folded into columns side by side, so that they are about as wide as the screen.
  function fold(part) {
    const layers = Math.max(...part.nodes.map((node) => node.y)) + 1;
    const column = (Math.max(...part.nodes.map((node) => Math.abs(node.x))) * 2 + 1) * INNER_X + 40;
    const columns = Math.max(1, Math.round(Math.sqrt((1.8 * layers * INNER_Y) / column)));
    const rows = Math.ceil(layers / columns);
    return {
      width: columns * column,
      height: rows * INNER_Y,
      at: (node) => ({
        x: (Math.floor(node.y / rows) - (columns - 1) / 2) * column + node.x * INNER_X,
        y: (node.y % rows) * INNER_Y,
      }),
    };
  }
  for (const part of data.partitions) part.fold = fold(part);

  // Layers keep their distance from the tallest open partition in them.
  function place() {
    const tall = new Map(), wide = new Map();
    for (const part of data.partitions) {
      tall.set(part.y, Math.max(tall.get(part.y) || 0, open.has(part.id) ? part.fold.height + Y : Y));
      wide.set(part.y, Math.max(wide.get(part.y) || 0, open.has(part.id) ? part.fold.width + 200 : X));
    }
    const top = new Map();
    let y = 0;
    for (const layer of [...tall.keys()].sort((a, b) => a - b)) { top.set(layer, y); y += tall.get(layer); }
    return { top, wide };
  }

  function draw(fit) {
    const { top, wide } = place();
    const elements = [];
    for (const part of data.partitions) {
      const x = part.x * wide.get(part.y), y = top.get(part.y);
      const size = part.nodes.length;
      const label = `${part.target}\n${size} operator${size === 1 ? "" : "s"}`;
      const common = { id: "p" + part.id, label, color: colorOf(part.target) };
      if (!open.has(part.id)) {
        elements.push({ data: { ...common, w: Math.min(240, 130 + 6 * Math.sqrt(size)), h: 58 }, position: { x, y }, classes: "part" });
        continue;
      }
      elements.push({ data: { ...common, w: 1, h: 1 }, classes: "part" });
      for (const node of part.nodes) {
        const at = part.fold.at(node);
        elements.push({ data: { id: "n" + node.id, parent: common.id, label: node.op, title: node.name, output: node.output,
          color: common.color, w: 124, h: 30 }, position: { x: x + at.x, y: y + at.y }, classes: "op" });
      }
      for (const [a, b] of part.edges) elements.push({ data: { id: `n${a}-${b}`, source: "n" + a, target: "n" + b } });
    }
    for (const edge of data.edges) {
      const more = edge.tensors.length > 1 ? ` +${edge.tensors.length - 1}` : "";
      elements.push({ data: { id: `p${edge.from}-p${edge.to}`, source: "p" + edge.from, target: "p" + edge.to, label: edge.tensors[0] + more } });
    }
    cy.batch(() => { cy.elements().remove(); cy.add(elements); });
    if (fit) showAll();
  }

  // A few partitions would fill the box as giants: nothing grows beyond its own size.
  function showAll() {
    cy.fit(undefined, 30);
    if (cy.zoom() > 1) { cy.zoom(1); cy.center(); }
  }

  const detail = document.getElementById("graph-detail");
  function tell(part) {
    const operators = Object.entries(part.operators).map(([op, count]) => `${op} × ${count}`).join(", ");
    detail.textContent = `Partition ${part.id} on ${part.target}: ${operators}`;
  }

  function toggle(id) {
    const part = data.partitions.find((each) => each.id === id);
    if (open.has(id)) open.delete(id); else open.add(id);
    draw(false);
    tell(part);
    cy.animate({ fit: { eles: cy.$id("p" + id), padding: 60 } },
      { duration: matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 250 });
    mark();
  }

  function mark() {
    for (const button of document.querySelectorAll("#partitions button")) {
      button.setAttribute("aria-expanded", String(open.has(button.dataset.partition)));
    }
  }

  const list = document.getElementById("partitions");
  for (const part of data.partitions) {
    const row = list.insertRow();
    const swatch = document.createElement("span");
    swatch.className = "swatch c" + (targets.indexOf(part.target) % 8);
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Partition " + part.id;
    button.dataset.partition = part.id;
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => toggle(part.id));
    const cells = [button, part.target, String(part.nodes.length),
      Object.entries(part.operators).slice(0, 4).map(([op, count]) => `${op} × ${count}`).join(", ")];
    for (const content of cells) row.insertCell().append(content);
    ["Partition", "Target", "Operators", "Most frequent"].forEach((label, i) => { row.cells[i].dataset.label = label; });
    const named = document.createElement("span");
    named.append(swatch, part.target);
    row.cells[1].replaceChildren(named);
    row.cells[2].className = "number";
  }

  cy.on("tap", "node.part", (tap) => toggle(tap.target.id().slice(1)));
  cy.on("tap", "node.op", (tap) => {
    cy.$(".chosen").removeClass("chosen");
    tap.target.addClass("chosen");
    const node = tap.target.data();
    detail.textContent = `${node.label} “${node.title}” makes ${node.output}`;
    tap.stopPropagation();
  });
  cy.on("tap", "edge", (tap) => {
    const edge = data.edges.find((each) => `p${each.from}-p${each.to}` === tap.target.id());
    if (edge) detail.textContent = `From partition ${edge.from} to ${edge.to}: ${edge.tensors.join("; ")}`;
  });
  document.getElementById("graph-fit").addEventListener("click", showAll);
  document.getElementById("graph-close").addEventListener("click", () => { open.clear(); draw(true); mark(); });
  draw(true);
  status.textContent = "";
  box.dataset.ready = "true";
  window.collageGraph = { cy, toggle };
})();
