// Where partitions and operators stand: layers from left to right, folded into rows so that the width is used.
"use strict";
window.collageLayout = (() => {
  const W = 230, H = 92, GAP_X = 120, GAP_Y = 36, INNER_X = 150, INNER_Y = 52;

  // A deep partition is folded into columns side by side, so that it is about as wide as the screen.
  function fold(part) {
    let layers = 0, span = 0;
    for (const node of part.nodes) { layers = Math.max(layers, node.y + 1); span = Math.max(span, Math.abs(node.x)); }
    const column = (span * 2 + 1) * INNER_X + 40;
    const columns = Math.max(1, Math.round(Math.sqrt((1.8 * layers * INNER_Y) / column)));
    const rows = Math.ceil(layers / columns);
    return {
      width: columns * column, height: rows * INNER_Y,
      at: (node) => ({ x: (Math.floor(node.y / rows) - (columns - 1) / 2) * column + node.x * INNER_X,
        y: ((node.y % rows) - (rows - 1) / 2) * INNER_Y }),
    };
  }

  const sizeOf = (part, isOpen) => isOpen ? { w: part.fold.width + 40, h: part.fold.height + 70 } : { w: W, h: H };

  // Rows alternate their direction, so that an edge to the next row is short.
  function rowsOf(layers, most) {
    const rows = [];
    let row = null;
    for (const layer of layers) {
      if (!row || row.w + layer.w > most) { row = { layers: [], w: 0, h: 0 }; rows.push(row); }
      row.layers.push(layer);
      row.w += layer.w + GAP_X;
      row.h = Math.max(row.h, layer.h);
    }
    return rows;
  }

  function place(parts, open, width, height) {
    const byLayer = new Map();
    for (const part of parts) { if (!byLayer.has(part.y)) byLayer.set(part.y, []); byLayer.get(part.y).push(part); }
    const layers = [...byLayer.keys()].sort((a, b) => a - b).map((key) => {
      const members = byLayer.get(key).sort((a, b) => a.x - b.x);
      const sizes = members.map((part) => sizeOf(part, open.has(part.id)));
      return { members, sizes, w: Math.max(...sizes.map((size) => size.w)), h: sizes.reduce((sum, size) => sum + size.h + GAP_Y, -GAP_Y) };
    });
    const total = layers.reduce((sum, layer) => sum + layer.w + GAP_X, 0);
    let best = null;
    for (let count = 1; count <= Math.min(layers.length, 24); count += 1) {
      const rows = rowsOf(layers, total / count);
      const w = Math.max(...rows.map((row) => row.w)) - GAP_X, h = rows.reduce((sum, row) => sum + row.h + 70, 0);
      const scale = Math.min(width / w, height / h, 1);
      if (!best || scale > best.scale * 1.05) best = { rows, scale };
      // The fewest rows that can be read: the width is used first.
      if (best.scale > 0.7) break;
    }
    const spots = new Map();
    let y = 0;
    best.rows.forEach((row, number) => {
      const flipped = number % 2 === 1;
      const widest = Math.max(...best.rows.map((each) => each.w));
      let x = 0;
      for (const layer of row.layers) {
        let top = y + (row.h - layer.h) / 2;
        layer.members.forEach((part, i) => {
          const middle = x + layer.w / 2;
          spots.set(part.id, { x: flipped ? widest - GAP_X - middle : middle, y: top + layer.sizes[i].h / 2 });
          top += layer.sizes[i].h + GAP_Y;
        });
        x += layer.w + GAP_X;
      }
      y += row.h + 70;
    });
    return spots;
  }
  return { fold, place, W, H };
})();
