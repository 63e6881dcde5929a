// Times in the reader's own zone ("3 min ago", UTC on hover), anew when htmx brings rows; texts in the words of the form.
"use strict";
const wording = (() => {
  const rules = JSON.parse(document.querySelector("meta[name=wording]").content).map(([pattern, shown, option]) => ({ pattern: new RegExp(pattern, "g"), shown, option }));
  return {
    // A text for people at a terminal as the pages say it.
    of: (text) => text ? rules.reduce((said, rule) => said.replace(rule.pattern, rule.shown), text) : text,
    // The options whose flags a text names.
    options: (text) => rules.filter((rule) => rule.option && text.search(rule.pattern) >= 0).map((rule) => rule.option),
  };
})();
(() => {
  const words = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
  const STEPS = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [7 * 86400, "day", 86400]];
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  function told(at) {
    const ago = (Date.now() - at) / 1000;
    if (ago < 10 && ago > -10) return "just now";
    const step = STEPS.find(([limit]) => Math.abs(ago) < limit);
    return step ? words.format(-Math.round(ago / step[2]), step[1]) : full.format(at);
  }

  function show(root) {
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      each.textContent = told(at);
      each.title = `${full.format(at)} here, ${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    }
  }
  show(document);
  setInterval(() => show(document), 20000);
  document.addEventListener("htmx:afterSettle", () => show(document));
})();
