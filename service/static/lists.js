// The list of jobs: Compare needs two; what is chosen stays when the rows come anew.
"use strict";
(() => {
  const chosen = new Set(new URLSearchParams(location.search).getAll("pick"));
  function mark() {
    for (const box of document.querySelectorAll("input[name=job]")) box.checked = chosen.has(box.value);
    const button = document.getElementById("compare");
    button.disabled = chosen.size < 2;
    button.textContent = chosen.size ? `Compare (${chosen.size})` : "Compare";
  }
  document.addEventListener("change", (change) => {
    if (!change.target.matches("input[name=job]")) return;
    if (change.target.checked) chosen.add(change.target.value); else chosen.delete(change.target.value);
    mark();
  });
  document.addEventListener("htmx:afterSettle", mark);
  mark();
})();
