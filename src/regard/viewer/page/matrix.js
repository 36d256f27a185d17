// One matrix: a row per query, a column per key.

VIEWS.push({
  id: "matrix",
  name: "Matrix",
  focus: true,
  fits: (r, map) => drawable(map),
  draw() {
    const matrix = current();
    const limit = limitOf(matrix);
    const grid = gridOf({
      ...matrix, id: "matrix", limit, numbers: state.numbers, room: $("view").parentNode.clientWidth - 430,
      aria: `Attention weights: a row for each item of ${matrix.map.query}, a column for each item of ${matrix.map.key}`,
      corner: [matrix.map.key, matrix.map.query],
      ...cellColors(matrix, limit), tip: tipOf(matrix), words: wordsOf(matrix), pointed: pointTo,
    });
    this.grid = grid;
    return [grid.node, scaleOf(matrix, limit)];
  },
  drawn() {
    this.grid.point(state.row, state.column, false);
  },
});

// How cells are coloured: each by its weight, or by its weight in its row.
function cellColors(matrix, limit) {
  const limits = state.scale === "row" ? Array.from({ length: matrix.rows }, (_, row) => limitOf(matrix, row)) : null;
  return {
    color: (weight, row) => matrix.tint(weight / (limits ? limits[row] : limit)), limits,
    ...(matrix.map.signed ? { colors: arms, low: -limit } : {}),
  };
}

// The legend: the colours, the precision of the numbers, and their entropy.
function scaleOf(matrix, limit) {
  const scale = legendOf(matrix, limit);
  scale.append(el("span", { class: "said" }, `${matrix.rows} × ${matrix.columns}${matrix.map.signed ? "" : `, mean entropy ${bits(matrix)}`}`));
  const kept = precisionOf(matrix.map.weights);
  if (kept) scale.append(el("span", { class: "said" }, `weights ${kept}`));
  return scale;
}
