// The upload form: builds the API's own multipart request, shows how far the upload is, follows the job.
"use strict";
(() => {
  const form = document.getElementById("upload");
  if (!form) return;
  const bar = document.getElementById("bar");
  const note = document.getElementById("note");

  function options() {
    const chosen = {};
    for (const field of form.querySelectorAll("[data-option]")) {
      if (field.type === "checkbox") {
        if (field.checked) chosen[field.dataset.option] = true;
        continue;
      }
      if (!field.value) continue;
      chosen[field.dataset.option] = field.type === "number" ? Number(field.value) : field.value;
    }
    const dims = form.elements.dims.value.trim();
    if (dims) {
      chosen.dims = {};
      for (const pair of dims.split(/[\s,]+/)) {
        const [name, size] = pair.split("=");
        if (!name || !/^\d+$/.test(size || "")) throw new Error(`write dimensions as name=size, not “${pair}”`);
        chosen.dims[name] = Number(size);
      }
    }
    return chosen;
  }

  form.addEventListener("submit", (submit) => {
    submit.preventDefault();
    note.textContent = "";
    const targets = [...form.querySelectorAll("input[name=target]:checked")].map((box) => box.value);
    for (const line of form.elements.more.value.split("\n")) if (line.trim()) targets.push(line.trim());
    const body = new FormData();
    try {
      if (!targets.length) throw new Error("choose at least one target");
      body.append("options", JSON.stringify(options()));
    } catch (error) { note.textContent = error.message; return; }
    body.append("targets", JSON.stringify(targets));
    body.append("model", form.elements.model.files[0]);
    if (form.elements.inputs.files.length) body.append("inputs", form.elements.inputs.files[0]);
    const button = form.querySelector("button.primary");
    button.disabled = true;
    bar.hidden = false;
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/jobs");
    request.upload.addEventListener("progress", (sent) => { bar.max = sent.total; bar.value = sent.loaded; });
    request.addEventListener("loadend", () => {
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { answer = { detail: "the server did not answer" }; }
      if (request.status === 201) { location.assign("/jobs/" + answer.id); return; }
      bar.hidden = true;
      button.disabled = false;
      note.textContent = answer.detail;
      note.focus();
    });
    request.send(body);
  });
})();
