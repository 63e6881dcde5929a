// A map of the whole graph with the part that is seen; a click goes there. Shown where the graph is larger than the box.
"use strict";
window.collageMinimap = (cy) => {
  const canvas = document.getElementById("minimap");
  const most = { w: canvas.width, h: canvas.height };
  const paint = canvas.getContext("2d");
  let frame = null;
  function scale() {
    const box = cy.elements().boundingBox();
    return { box, by: Math.min(most.w / (box.w || 1), most.h / (box.h || 1)) };
  }
  function draw() {
    frame = null;
    const { box, by } = scale();
    const seen = cy.extent();
    canvas.hidden = seen.w >= box.w * 0.85 && seen.h >= box.h * 0.85;
    if (canvas.hidden) return;
    canvas.width = Math.ceil(box.w * by);  // this clears it
    canvas.height = Math.ceil(box.h * by);
    cy.nodes().forEach((node) => {
      if (node.isParent()) return;
      const at = node.position();
      paint.fillStyle = node.data("color");
      const w = Math.max(2, node.width() * by), h = Math.max(2, node.height() * by);
      paint.fillRect((at.x - box.x1) * by - w / 2, (at.y - box.y1) * by - h / 2, w, h);
    });
    paint.strokeStyle = collageColors.theme("--ink");
    paint.lineWidth = 2;
    paint.strokeRect((seen.x1 - box.x1) * by, (seen.y1 - box.y1) * by, seen.w * by, seen.h * by);
  }
  function later() { if (!frame) frame = setTimeout(draw, 60); }
  cy.on("pan zoom resize add remove", later);
  canvas.addEventListener("pointerdown", (press) => {
    const { box, by } = scale();
    const x = press.offsetX / by + box.x1, y = press.offsetY / by + box.y1;
    cy.pan({ x: cy.width() / 2 - x * cy.zoom(), y: cy.height() / 2 - y * cy.zoom() });
  });
  return { draw: later };
};
