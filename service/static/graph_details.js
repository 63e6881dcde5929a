// What is chosen in the graph in words, and the pins that a click there makes for another run.
"use strict";
window.collageDetails = (data) => {
  const { chip, latency } = collageColors;
  const box = document.getElementById("graph-detail");
  const form = document.getElementById("pins");
  const asked = JSON.parse(form.dataset.targets);
  const given = JSON.parse(form.dataset.options);
  const pins = new Map();
  const targets = [...new Set([...asked, ...data.partitions.map((part) => part.target)])];

  function make(tag, content, className) {
    const made = document.createElement(tag);
    if (content != null) made.append(content);
    if (className) made.className = className;
    return made;
  }
  function list(pairs) {
    const table = make("table", null, "tight");
    for (const [key, value] of pairs) {
      const row = table.insertRow();
      const head = make("th", key);
      head.scope = "row";
      row.append(head);
      row.insertCell().append(value);
    }
    return table;
  }

  function copied(us) {
    if (us == null) return "not measured; counted in the partitions";
    return us ? `${latency(us)} to another memory, counted in the partition that makes them` : "no copy: both partitions use the same memory";
  }

  // An operator type that lies wholly in the choice is one pin; else nodes are named.
  function selections(nodes) {
    const everywhere = new Map(), here = new Map();
    for (const part of data.partitions) for (const node of part.nodes) everywhere.set(node.op, (everywhere.get(node.op) || 0) + 1);
    for (const node of nodes) here.set(node.op, (here.get(node.op) || 0) + 1);
    const whole = nodes.length > 1 ? [...here.keys()].filter((op) => here.get(op) === everywhere.get(op)) : [];
    return [...whole, ...nodes.filter((node) => !whole.includes(node.op)).map((node) => node.name)];
  }

  function pinning(nodes, title) {
    const area = make("div", null, "pinning");
    const select = make("select");
    select.setAttribute("aria-label", "Target for " + title);
    for (const target of targets) select.append(new Option(target));
    const pin = make("button", "Pin here");
    const ban = make("button", "Forbid here");
    for (const [button, kind] of [[pin, "pins"], [ban, "bans"]]) {
      button.type = "button";
      button.addEventListener("click", () => {
        for (const selection of selections(nodes)) pins.set(`${kind} ${selection}=${select.value}`, { kind, text: `${selection}=${select.value}` });
        showPins();
      });
    }
    area.append(make("h4", "For another run"), select, pin, ban);
    return area;
  }

  function showPins() {
    form.hidden = !pins.size;
    const shown = document.getElementById("pin-list");
    shown.replaceChildren();
    for (const [key, pin] of pins) {
      const item = make("li", `${pin.kind === "pins" ? "pin" : "forbid"} `);
      const remove = make("button", "×");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${pin.text}`);
      remove.addEventListener("click", () => { pins.delete(key); showPins(); });
      item.append(make("code", pin.text), " ", remove);
      shown.append(item);
    }
  }
  document.getElementById("pins-clear").addEventListener("click", () => { pins.clear(); showPins(); });

  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    const problem = document.getElementById("pins-problem");
    // A rerun keeps the model, the sample inputs and all other options.
    const options = { pins: [...(given.pins || [])], bans: [...(given.bans || [])], plan: null };
    for (const pin of pins.values()) options[pin.kind].push(pin.text);
    for (const kind of ["pins", "bans"]) if (!options[kind].length) delete options[kind];
    const answer = await fetch(form.dataset.rerun, { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ targets: asked, options }) });
    const said = await answer.json().catch(() => ({ detail: answer.statusText }));
    if (answer.ok) location.assign("/jobs/" + said.id); else problem.textContent = wording.of(said.detail);
  });

  function values(title, pairs) {
    if (!pairs.length) return "";
    const part = make("section");
    part.append(make("h4", title), list(pairs.map(([name, kind]) => [make("code", name), kind])));
    return part;
  }

  return {
    part(part, share) {
      const facts = [["Target", chip(part.target)], ["Operators", String(part.nodes.length)]];
      if (part.latency_us != null) facts.push(["Time", `${latency(part.latency_us)}, ${Math.round(share * 100)} % of all partitions`]);
      if (part.predicted_us != null) facts.push(["Measured alone", latency(part.predicted_us)]);
      if (part.numbers) facts.push(["Computes in", part.numbers]);
      box.replaceChildren(make("h3", "Partition " + part.id), list(facts));
      if (part.why && part.why.length) {
        const why = make("ul");
        for (const line of part.why) why.append(make("li", line));
        box.append(make("h4", "Why"), why);
      }
      box.append(make("h4", "Operators"), make("p", Object.entries(part.operators).map(([op, count]) => `${op} × ${count}`).join(", ")), pinning(part.nodes, "partition " + part.id));
    },
    node(node, part) {
      box.replaceChildren(make("h3", node.op), list([["Name", make("code", node.name)], ["Partition", `${part.id}, ${part.target}`]]));
      box.append(values("Inputs", node.inputs), values("Outputs", node.outputs), values("Attributes", Object.entries(node.attributes)), pinning([node], node.name));
    },
    edge(edge) {
      box.replaceChildren(make("h3", `From partition ${edge.from} to ${edge.to}`),
        list([["Bytes", edge.bytes == null ? "not known before the model runs" : collageColors.size(edge.bytes)], ["Tensors", edge.tensors.join("; ")],
          ["Time", copied(edge.latency_us)]]));
    },
  };
};
