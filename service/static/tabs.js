// Tabs after the ARIA practice: arrows move, the address keeps which one is open. Without this all are shown.
"use strict";
(() => {
  const list = document.querySelector("[role=tablist]");
  if (!list) return;
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const address = () => new URLSearchParams(location.hash.slice(1));

  function open(tab, keep) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (keep) {
      const said = address();
      said.set("tab", tab.id.slice(4));
      history.replaceState(null, "", "#" + said);
    }
    document.dispatchEvent(new CustomEvent("tab-opened", { detail: tab.id.slice(4) }));
  }

  list.addEventListener("click", (click) => { const tab = click.target.closest("[role=tab]"); if (tab) open(tab, true); });
  list.addEventListener("keydown", (press) => {
    const at = tabs.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[press.key];
    if (next === undefined || at < 0) return;
    press.preventDefault();
    const tab = tabs[(next + tabs.length) % tabs.length];
    tab.focus();
    open(tab, true);
  });
  open(document.getElementById("tab-" + address().get("tab")) || tabs[0], false);
})();
