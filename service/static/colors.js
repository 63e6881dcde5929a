// One color per target: the rule of service/pages/target_colors.py, and the colors as the theme has them now.
"use strict";
window.collageColors = (() => {
  const KNOWN = ["onnxruntime", "openvino", "mnn", "ncnn", "torch"];
  const probes = new Map();

  function hash(text) {
    let total = 7;
    for (const character of text) total = (total * 31 + character.codePointAt(0)) % 65521;
    return total;
  }

  function classOf(target) {
    const [backend] = target.trim().split(" ");
    const options = target.trim().slice(backend.length + 1);
    const known = KNOWN.indexOf(backend);
    const hue = known >= 0 ? known : KNOWN.length + hash(backend) % (8 - KNOWN.length);
    return `c${hue} v${options ? 1 + hash(options) % 3 : 0}`;
  }

  function of(target) {
    const classes = classOf(target);
    if (!probes.has(classes)) {
      const probe = document.createElement("i");
      probe.className = `probe ${classes}`;
      document.body.append(probe);
      probes.set(classes, probe);
    }
    // Canvases take no color-mix(): one pixel gives plain numbers.
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const paint = canvas.getContext("2d", { willReadFrequently: true });
    paint.fillStyle = getComputedStyle(probes.get(classes)).backgroundColor;
    paint.fillRect(0, 0, 1, 1);
    return "#" + [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value.toString(16).padStart(2, "0")).join("");
  }

  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function chip(target) {
    const shown = document.createElement("span");
    shown.className = "target";
    const swatch = document.createElement("span");
    swatch.className = `swatch ${classOf(target)}`;
    shown.append(swatch, target);
    return shown;
  }

  function onThemeChange(listener) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(listener));
  }

  const significant = (value, digits = 3) => {
    if (!value) return "0";
    const places = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
    return places > 0 ? value.toFixed(places) : String(Math.round(value));
  };
  // With a reference all numbers of a table share its unit and its decimals.
  const latency = (us, reference = null) => {
    if (us == null) return "–";
    if (reference != null) {
      const [unit, name] = reference >= 1e6 ? [1e6, "s"] : reference >= 100 ? [1000, "ms"] : [1, "µs"];
      return (us / unit).toFixed(Math.max(0, 2 - Math.floor(Math.log10(reference / unit)))) + " " + name;
    }
    if (us >= 1e6) return significant(us / 1e6) + " s";
    return us >= 100 ? significant(us / 1000) + " ms" : significant(us) + " µs";
  };
  const size = (bytes) => {
    if (bytes == null) return "";
    const units = ["B", "kB", "MB", "GB"];
    let at = 0;
    while (bytes >= 1024 && at < 3) { bytes /= 1024; at += 1; }
    return (at ? significant(bytes) : Math.round(bytes)) + " " + units[at];
  };
  return { of, classOf, theme, chip, onThemeChange, latency, size };
})();
