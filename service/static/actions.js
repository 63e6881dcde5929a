// Buttons that call the API: <button data-method="DELETE" data-url="/v1/jobs/…" data-then="/jobs/…">.
// data-body is sent as JSON. Without data-then the page of what was made opens.
"use strict";
document.addEventListener("click", async (click) => {
  const button = click.target.closest("button[data-method]");
  if (!button) return;
  button.disabled = true;
  const request = { method: button.dataset.method };
  if (button.dataset.body) Object.assign(request, { headers: { "Content-Type": "application/json" }, body: button.dataset.body });
  const answer = await fetch(button.dataset.url, request);
  if (answer.ok) { location.assign(button.dataset.then || (await answer.json()).links.page); return; }
  const problem = await answer.json().catch(() => ({ detail: answer.statusText }));
  button.disabled = false;
  let note = button.parentElement.querySelector("[role=alert]");
  if (!note) { note = document.createElement("p"); note.setAttribute("role", "alert"); note.className = "bad"; button.after(note); }
  note.textContent = wording.of(problem.detail);
});
