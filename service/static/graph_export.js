// The graph as a file: SVG written from what is drawn, PNG by the library.
"use strict";
window.collageExport = (() => {
  const safe = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function lines(label, x, y, size, color, anchor = "middle") {
    const rows = label.split("\n");
    return rows.map((row, i) => `<text x="${x}" y="${y + (i - (rows.length - 1) / 2) * size * 1.25 + size * 0.35}" font-size="${size}" text-anchor="${anchor}" fill="${color}">${safe(row)}</text>`).join("");
  }

  function svg(cy) {
    const { theme } = collageColors;
    const box = cy.elements().boundingBox();
    const parts = [`<svg xmlns="http://www.w3.org/2000/svg" viewBox="${box.x1 - 20} ${box.y1 - 20} ${box.w + 40} ${box.h + 40}" font-family="system-ui, sans-serif">`,
      `<rect x="${box.x1 - 20}" y="${box.y1 - 20}" width="${box.w + 40}" height="${box.h + 40}" fill="${theme("--paper")}"/>`,
      `<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="${theme("--soft")}"/></marker></defs>`];
    cy.nodes(":parent").forEach((node) => {
      const at = node.boundingBox({ includeLabels: false });
      parts.push(`<rect x="${at.x1}" y="${at.y1}" width="${at.w}" height="${at.h}" rx="8" fill="${node.data("color")}" fill-opacity=".12" stroke="${node.data("color")}" stroke-width="2"/>`,
        lines(node.data("label").split("\n").join("  "), at.x1 + at.w / 2, at.y1 - 12, 13, theme("--ink")));
    });
    cy.edges().forEach((edge) => {
      const a = edge.sourceEndpoint(), b = edge.targetEndpoint();
      parts.push(`<line x1="${a.x}" y1="${a.y}" x2="${b.x}" y2="${b.y}" stroke="${theme("--soft")}" stroke-width="1.5" marker-end="url(#a)"/>`);
      if (edge.data("label")) parts.push(lines(edge.data("label"), (a.x + b.x) / 2, (a.y + b.y) / 2, 10, theme("--ink")));
    });
    cy.nodes(":childless").forEach((node) => {
      const at = node.position(), w = node.width(), h = node.height(), color = node.data("color");
      const isPart = node.hasClass("part");
      const x = at.x - w / 2, y = at.y - h / 2;
      parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" rx="8" fill="${isPart ? theme("--raised") : color}" stroke="${color}" stroke-width="2"/>`);
      if (isPart) parts.push(`<rect x="${x}" y="${y}" width="${w * node.data("share")}" height="${h}" rx="8" fill="${color}" fill-opacity=".3"/>`);
      parts.push(lines(node.data("label"), at.x, at.y, isPart ? 13 : 11, isPart ? theme("--ink") : theme("--paper")));
    });
    return parts.join("") + "</svg>";
  }

  return {
    svg: (cy, name) => save(new Blob([svg(cy)], { type: "image/svg+xml" }), name + ".svg"),
    png: (cy, name) => save(cy.png({ full: true, scale: 2, maxWidth: 8000, maxHeight: 8000, bg: collageColors.theme("--paper"), output: "blob" }), name + ".png"),
  };
})();
