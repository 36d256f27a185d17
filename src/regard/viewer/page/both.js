// Both directions of a co-attention: two matrices, and the weights of one item in both.

VIEWS.push({
  id: "both",
  name: "Both directions",
  focus: true,
  wide: true,
  fits: (r, map) => drawable(map) && reverseOf(r, map) >= 0,
  draw() {
    const there = current();
    const back = matrixOf(there.r, there.r.maps[reverseOf(there.r, there.map)], Math.min(state.head, there.r.maps[reverseOf(there.r, there.map)].shape[0] - 1));
    const limit = Math.max(limitOf(there), limitOf(back));
    this.grids = [];
    const one = (matrix, id, turn) => {
      const grid = gridOf({
        ...matrix, id, limit, numbers: state.numbers, room: ($("view").parentNode.clientWidth - 560) / 2,
        aria: `From ${matrix.map.query} to ${matrix.map.key}`, corner: [matrix.map.key, matrix.map.query],
        color: (weight) => color(weight / limit),
        tip: (row, column) => bothWays(there, back, ...turn(row, column)),
        words: wordsOf(matrix),
        pointed: (row, column) => {
          const [r, c] = turn(row, column);
          pointTo(r, c);
          this.grids[0].point(r, c, false);
          this.grids[1].point(c, r, false);
          tellBoth(there, back);
        },
      });
      this.grids.push(grid);
      const title = el("h3", {}, el("bdi", {}, matrix.map.query), " looks at ", el("bdi", {}, matrix.map.key));
      return el("section", { class: "one" }, title, grid.node);
    };
    const pair = el("div", { class: "pair" }, one(there, "there", (row, column) => [row, column]), one(back, "back", (row, column) => [column, row]));
    return [pair, el("p", { class: "told", id: "told", "aria-live": "polite" }), legend(0, limit)];
  },
  drawn() {
    this.grids[0].point(state.row, state.column, false);
    this.grids[1].point(state.column, state.row, false);
    const { r, map } = current();
    const other = r.maps[reverseOf(r, map)];
    tellBoth(current(), matrixOf(r, other, Math.min(state.head, other.shape[0] - 1)));
  },
});

const pairOf = (there, back, row, column) => [there.weights[row * there.columns + column], back.weights[column * back.columns + row]];

function bothWays(there, back, row, column) {
  const [gave, got] = pairOf(there, back, row, column);
  return [label(there.query[row]), " → ", label(there.key[column]), "  ", el("b", {}, exact(gave)), ", back ", el("b", {}, exact(got))];
}

function tellBoth(there, back) {
  const [gave, got] = pairOf(there, back, state.row, state.column);
  const names = [label(there.query[state.row]), label(there.key[state.column])];
  $("told").replaceChildren(names[0], " gives ", names[1], " ", el("b", { id: "gave" }, exact(gave)), " and gets ", el("b", { id: "got" }, exact(got)), " from it");
}
