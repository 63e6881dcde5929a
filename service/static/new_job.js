// The form of a new job: a dropped model is sent and read at once, its free dimensions become fields, faults stand beside their field.
"use strict";
(() => {
  const form = document.getElementById("upload");
  if (!form) return;
  const at = (id) => document.getElementById(id);
  const file = form.elements.model;
  let model = null;
  let sending = null;

  function fault(field, text) {
    const said = field.closest("label").querySelector(".fault");
    field.setAttribute("aria-invalid", String(Boolean(text)));
    if (!said) return;
    said.hidden = !text;
    said.textContent = text || "";
  }

  const whole = (text) => {
    if (!/^\d{1,10}$/.test(text) || Number(text) > 2147483647) throw new Error(`“${text}” is no size: write 16, 16,64 or 1..512`);
    return Number(text);
  };

  // Sizes of a dimension as the command line takes them: 16 · 16,64 · 16:0.7,64:0.3 · 1..512 · 320..640/32
  function sizes(text) {
    const range = text.match(/^([^.]*)\.\.([^/]*)(?:\/(.*))?$/);
    if (range) {
      const [low, high, step] = [whole(range[1].trim()), whole(range[2].trim()), whole((range[3] ?? "1").trim())];
      if (low > high) throw new Error(`the range ends before it begins: write ${high}..${low}`);
      if (step < 1 || (high - low) % step) throw new Error("the range does not end on a step");
      return text;
    }
    const parts = text.split(",").map((part) => part.trim().split(":"));
    const seen = parts.map(([size]) => whole(size.trim()));
    if (new Set(seen).size < seen.length) throw new Error("a size is given twice");
    const weights = parts.filter((part) => part.length > 1);
    if (weights.length && (weights.length < parts.length || weights.some((part) => part.length > 2 || !(Number(part[1]) > 0)))) throw new Error("give each size a weight above 0, as 16:0.7,64:0.3");
    if (weights.length && parts.length < 2) throw new Error(`a weight is for one of several sizes: write ${seen[0]}, or 1..512 for a range`);
    return parts.length > 1 ? text : seen[0];
  }

  // Requests of a log, one a line, in their order.
  function requests(text) {
    const read = [];
    for (const [number, line] of text.split("\n").entries()) {
      if (!line.trim()) continue;
      let shape = null;
      try { shape = JSON.parse(line); } catch { /* told below */ }
      if (!shape || typeof shape !== "object" || Array.isArray(shape)) throw new Error(`line ${number + 1} is not of the form {"input": [1, 3, 48, 320]}`);
      read.push(shape);
    }
    return read;
  }

  // One place says what a field may hold; returns its value, or undefined where it is empty.
  function read(field) {
    const kind = field.dataset.control;
    if (kind === "check") return field.checked || undefined;
    const text = field.value.trim();
    if (field.validity.badInput) throw new Error("write a number");
    if (!text) return undefined;
    if (kind === "number" || kind === "integer") {
      if (!field.validity.valid || (kind === "integer" && !/^-?\d+$/.test(text))) throw new Error(field.validationMessage || "write a whole number");
      if (field.min !== "" && Number(text) < Number(field.min)) throw new Error(`at least ${field.min}`);
      return Number(text);
    }
    if (kind === "lines") {
      const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
      const form = field.dataset.form && new RegExp(`^${field.dataset.form}$`);
      const bad = form && lines.find((line) => !form.test(line));
      if (bad) throw new Error(`“${bad}” is not of the form nodes=target, such as Conv=openvino`);
      return lines;
    }
    if (kind === "sizes") return sizes(text);
    if (kind === "shapes") return requests(text);
    if (kind === "json") { try { return JSON.parse(text); } catch { throw new Error("this is no JSON"); } }
    return text;
  }

  function check(field) {
    try { read(field); fault(field, ""); return true; } catch (error) { fault(field, error.message); return false; }
  }

  function options() {
    const chosen = {};
    for (const field of form.querySelectorAll("[data-option]")) {
      const value = read(field);
      if (value !== undefined) chosen[field.dataset.option] = value;
    }
    for (const field of form.querySelectorAll("[data-dim]")) {
      const proposed = chosen.shapes ? undefined : field.dataset.proposed;
      const value = read(field) ?? (proposed && sizes(proposed));
      if (value !== undefined) (chosen.dims ||= {})[field.dataset.dim] = value;
    }
    return chosen;
  }

  function targets() {
    return [...form.querySelectorAll(".target-card")].filter((card) => card.querySelector("[name=target]").checked).map((card) => {
      const words = [card.dataset.target];
      for (const field of card.querySelectorAll("[data-target-option]")) if (field.value.trim()) words.push(`-${field.dataset.targetOption}=${field.value.trim()}`);
      return words.join(" ");
    });
  }

  function showFacts(facts) {
    const box = at("model-facts");
    box.hidden = false;
    box.replaceChildren();
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const title of ["Input", "Type", "Shape"]) { const cell = document.createElement("th"); cell.textContent = title; head.append(cell); }
    for (const input of facts.inputs) {
      const row = table.insertRow();
      for (const text of [input.name, input.dtype, input.dims.join(" × ") || "scalar"]) { const cell = row.insertCell(); cell.textContent = text; cell.className = "mono"; }
    }
    const operators = document.createElement("p");
    operators.className = "soft";
    operators.textContent = `${facts.nodes} node${facts.nodes === 1 ? "" : "s"}, opset ${facts.opset}: ${Object.entries(facts.operators).map(([op, count]) => `${op} × ${count}`).join(", ")}`;
    box.append(table, operators);
    const dims = at("dims");
    dims.hidden = at("seen").hidden = !facts.free.length;
    dims.replaceChildren();
    for (const free of facts.free) {
      const label = document.createElement("label");
      const title = document.createElement("span");
      const used = free.used.map((each) => `${each.input}, axis ${each.axis}`).join("; ");
      title.textContent = `Sizes of ${free.symbol || used}`;
      const field = document.createElement("input");
      Object.assign(field, { type: "text", placeholder: "16 or 16,64 or 1..512", autocomplete: "off", spellcheck: false });
      field.dataset.dim = free.name;
      field.dataset.control = "sizes";
      const where = document.createElement("small");
      where.className = "soft";
      where.textContent = free.symbol ? used : "";
      const said = document.createElement("small");
      said.className = "fault";
      said.hidden = true;
      label.append(title, field, where, said);
      dims.append(label);
    }
  }

  // A field that stays empty means its placeholder, once the model ran with it.
  async function propose(request) {
    const answer = await fetch(`/new/models/${model}/sizes`);
    const said = answer.ok ? await answer.json() : {};
    if (request !== sending) return;
    for (const [name, text] of Object.entries(said.proposed || {})) {
      const field = at("dims").querySelector(`[data-dim="${CSS.escape(name)}"]`);
      if (!field) continue;
      field.placeholder = text;
      field.dataset.proposed = text;
    }
    at("dims").dataset.tried = "true";
  }

  function send(chosen) {
    if (sending) sending.abort();
    model = null;
    at("model-facts").hidden = at("dims").hidden = true;
    at("dims").replaceChildren();
    delete at("dims").dataset.tried;
    at("model-note").className = "soft";
    at("model-note").textContent = `Sending ${chosen.name}…`;
    const bar = at("bar");
    bar.hidden = false;
    bar.removeAttribute("value");
    const request = new XMLHttpRequest();
    sending = request;
    request.open("POST", "/v1/models");
    request.upload.addEventListener("progress", (sent) => { bar.max = sent.total; bar.value = sent.loaded; });
    request.addEventListener("load", async () => {
      bar.hidden = true;
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { answer = { detail: "the server did not answer" }; }
      if (request.status >= 300) { refuse(answer.detail); return; }
      model = answer.sha256;
      at("model-note").textContent = `Reading ${chosen.name}…`;
      const facts = await fetch(`/new/models/${model}`);
      const said = await facts.json().catch(() => ({ detail: facts.statusText }));
      if (request !== sending) return;
      if (!facts.ok) {
        // The server keeps a lone file as model.onnx; people know it by its own name.
        refuse(chosen.name.endsWith(".onnx") ? said.detail.replace("model.onnx", () => chosen.name) : said.detail);
        return;
      }
      at("model-note").textContent = said.free.length ? `${chosen.name}: say the sizes of its free dimensions.` : `${chosen.name} is ready.`;
      at("ready").textContent = "";
      showFacts(said);
      form.dataset.ready = "true";
      if (said.free.length) propose(request);
    });
    request.addEventListener("error", () => { bar.hidden = true; refuse("the server cannot be reached"); });
    const body = new FormData();
    body.append("model", chosen);
    request.send(body);
  }

  function refuse(detail) {
    model = null;
    at("model-note").className = "bad";
    at("model-note").textContent = wording.of(detail);
    at("ready").textContent = "Choose a model first.";
  }

  file.addEventListener("change", () => { if (file.files.length) send(file.files[0]); });
  const drop = at("drop");
  for (const name of ["dragover", "dragenter"]) drop.addEventListener(name, (drag) => { drag.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (dropped) => {
    dropped.preventDefault();
    if (!dropped.dataTransfer.files.length) return;
    file.files = dropped.dataTransfer.files;
    send(file.files[0]);
  });

  // A fault goes as soon as it is mended: if it went at the next click, the page would move below the pointer.
  form.addEventListener("input", (input) => {
    if (input.target.getAttribute("aria-invalid") === "true") check(input.target);
  });
  form.addEventListener("change", (change) => {
    if (change.target.dataset.control) check(change.target);
    if (change.target.name === "target") at("targets-fault").hidden = Boolean(targets().length);
  });
  form.addEventListener("click", (click) => {
    const button = click.target.closest("[data-another]");
    if (!button) return;
    const card = button.closest(".target-card");
    const copy = card.cloneNode(true);
    copy.querySelector("[name=target]").checked = true;
    copy.querySelector("details").open = true;
    card.after(copy);
    copy.querySelector("[data-target-option]").focus();
  });

  function point(detail) {
    const said = wording.of(detail);
    at("note").textContent = said;
    const flagged = wording.options(detail);
    const dim = [...form.querySelectorAll("[data-dim]")].find((field) => detail.startsWith(`options.dims.${field.dataset.dim}:`));
    const named = dim || [...form.querySelectorAll("[data-option]")].find((field) => new RegExp(`\\b${field.dataset.option}\\b`).test(detail.split("(known")[0]))
      || [...form.querySelectorAll("[data-option]")].find((field) => flagged.includes(field.dataset.option));
    if (!named) { at("note").focus(); return; }
    const folded = named.closest("details");
    if (folded) folded.open = true;
    fault(named, said.split("(known")[0]);
    named.focus();
  }

  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    at("note").textContent = "";
    const fields = [...form.querySelectorAll("[data-control]")];
    const bad = fields.filter((field) => !check(field));
    const seen = at("option-shapes").value.trim();
    for (const field of form.querySelectorAll("[data-dim]")) if (!field.value.trim() && !field.dataset.proposed && !seen) { fault(field, "this dimension needs a size"); bad.push(field); }
    const chosen = targets();
    at("targets-fault").hidden = Boolean(chosen.length);
    at("targets-fault").textContent = chosen.length ? "" : "Choose at least one target.";
    if (!model) { refuse("Choose a model: an ONNX file, or a zip of one."); file.focus(); return; }
    if (bad.length) { const folded = bad[0].closest("details"); if (folded) folded.open = true; bad[0].focus(); return; }
    if (!chosen.length) { form.elements.target[0]?.focus(); return; }
    at("submit").disabled = true;
    const inputs = form.elements.inputs.files;
    let request;
    if (inputs.length) {
      // Sample inputs travel with the model: the API takes them in one form only.
      const body = new FormData();
      body.append("targets", JSON.stringify(chosen));
      body.append("options", JSON.stringify(options()));
      body.append("model", file.files[0]);
      body.append("inputs", inputs[0]);
      request = { method: "POST", body };
    } else {
      request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model_sha256: model, targets: chosen, options: options() }) };
    }
    try {
      const answer = await fetch("/v1/jobs", request);
      const said = await answer.json().catch(() => ({ detail: answer.statusText }));
      if (answer.ok) { location.assign("/jobs/" + said.id); return; }
      point(said.detail);
    } catch { at("note").textContent = "the server cannot be reached"; }
    at("submit").disabled = false;
  });
})();
