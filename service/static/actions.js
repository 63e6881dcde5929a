// Buttons that call the API: <button data-method="DELETE" data-url="/v1/jobs/…" data-then="/jobs/…">.
"use strict";
document.addEventListener("click", async (click) => {
  const button = click.target.closest("button[data-method]");
  if (!button) return;
  button.disabled = true;
  const answer = await fetch(button.dataset.url, { method: button.dataset.method });
  if (answer.ok) { location.assign(button.dataset.then); return; }
  const problem = await answer.json().catch(() => ({ detail: answer.statusText }));
  button.disabled = false;
  let note = button.parentElement.querySelector("[role=alert]");
  if (!note) { note = document.createElement("p"); note.setAttribute("role", "alert"); note.className = "bad"; button.after(note); }
  note.textContent = problem.detail;
});
