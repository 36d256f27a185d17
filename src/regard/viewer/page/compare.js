// Two matrices over the same items, side by side: two models, layers or heads; and their difference where both sides agree.

VIEWS.push({
  id: "compare",
  name: "Compare",
  focus: false,
  wide: true,
  here: true, // it is the map at hand that is compared
  fits: (r, map) => drawable(map) && rivals().length > 0,
  draw() {
    const one = current();
    const other = rival();
    const limit = Math.max(limitOf(one), limitOf(other));
    const same = sameItems(one.r, one.map.query, other.r, other.map.query);
    this.grids = [];
    const part = (matrix, id, top, name, changes = {}) => partOf(this.grids, matrix, id, { limit: top, name, same, ...changes });
    const parts = [part(one, "one", limit, nameOfSide(one, 0)), part(other, "other", limit, nameOfSide(other, 1))];
    if (!same) {
      const note = el("p", { class: "told", id: "no-difference" }, "The two maps have different queries, so there is no difference to draw.");
      return [el("div", { class: "pair" }, ...parts), note, legend(0, limit)];
    }
    const weights = Float32Array.from(one.weights, (weight, i) => weight - other.weights[i]);
    const top = Math.max(largest(weights), largest(weights.map((value) => -value))) || 1;
    const mean = weights.reduce((sum, value) => sum + Math.abs(value), 0) / one.rows;
    parts.push(part({ ...one, weights }, "difference", top, "A − B", {
      color: (value) => differenceColor(value / top), short: (value) => (Math.abs(value) < 0.005 ? "" : signed(value).replace(/(\.\d\d)\d+$/, "$1").replace("0.", ".")),
      limit: top, low: -top, colors: arms,
      tip: (row, column) => {
        const i = row * one.columns + column;
        return [label(one.query[row]), " ← ", label(one.key[column]), `  ${exact(one.weights[i])} − ${exact(other.weights[i])} = `, el("b", {}, signed(weights[i]))];
      },
      words: (row, column) => `${one.query[row]}, from ${one.key[column]}: difference ${signed(weights[row * one.columns + column])}`,
    }));
    const said = el("p", { class: "told", id: "distance" }, "Weight that differs, per row: ", el("b", {}, (mean / 2).toFixed(3)));
    return [el("div", { class: "pair" }, ...parts), said, legend(0, limit), legend(-top, top, differenceColor, "difference")];
  },
  drawn() {
    for (const grid of this.grids) grid.point(0, 0, false);
  },
});

// What is pointed at in one is pointed at in all that have the same rows.
function partOf(grids, matrix, id, changes) {
  const { limit, name, same } = changes;
  const grid = gridOf({
    ...matrix, id, numbers: state.numbers, room: ($("view").parentNode.clientWidth - 300) / 3,
    aria: `Attention weights: ${name}`, corner: [matrix.map.key, matrix.map.query],
    color: (weight) => color(weight / limit), tip: tipOf(matrix), words: wordsOf(matrix),
    pointed: (row, column) => { if (same) for (const other of grids) if (other !== grid) other.point(row, column, false); },
    ...changes,
  });
  grids.push(grid);
  return el("section", { class: "one" }, el("h3", {}, el("bdi", { dir: "auto" }, name)), grid.node);
}

function nameOfSide(matrix, side) {
  const r = matrix.r;
  const heads = matrix.map.shape[0] > 1 ? `, ${headName(matrix.map, matrix.head)}` : "";
  const several = records.length > 1 ? `${r.model || nameOf(r, records.indexOf(r))} · ` : "";
  return `${["A", "B"][side]}: ${several}${whenOf(r)}${matrix.map.name}${heads}`;
}

function rival() {
  const { index, map, head } = state.other;
  return matrixOf(records[index], records[index].maps[map], head);
}

// How much a map is what one compares with: another model before all, then the same map, then rows that allow a difference.
function likeness({ index, map }) {
  const other = records[index].maps[map];
  const own = currentMap();
  const model = index !== state.index && records[index].model !== record().model;
  const rows = sameItems(records[index], other.query, record(), own.query);
  return 10 * model + 4 * (other.name === own.name) + 3 * rows + 2 * (other.kind === own.kind) + (other.layer === own.layer) / 2;
}

// Keep what was chosen as long as it can be compared; else take the likest.
function settleRival() {
  const all = rivals();
  if (!all.length) return;
  const { index, map } = state.other;
  if (!state.other.chosen || !all.some((found) => found.index === index && found.map === map)) {
    const likest = all.reduce((best, found) => (likeness(found) > likeness(best) ? found : best));
    const next = records[likest.index].maps[likest.map];
    const itself = likest.index === state.index && likest.map === state.map;
    Object.assign(state.other, likest, { chosen: false, head: itself ? (state.head + 1) % next.shape[0] : Math.min(state.head, next.shape[0] - 1) });
  }
  const chosen = records[state.other.index].maps[state.other.map];
  state.other.head = within(state.other.head, chosen.shape[0] > 1 ? MEAN : 0, chosen.shape[0] - 1);
  const several = new Set(all.map((found) => found.index)).size > 1 || all.some((found) => found.index !== state.index);
  const names = all.map((found) => {
    const r = records[found.index];
    const whose = several ? `${r.model ? `${r.model} · ` : ""}${nameOf(r, found.index)} · ` : "";
    return [`${found.index}:${found.map}`, `${whose}${whenOf(r)}${r.maps[found.map].name}`];
  });
  options($("rival"), names, `${state.other.index}:${state.other.map}`);
  options($("rival-head"), headChoices(chosen), state.other.head);
  $("rival-head").parentNode.classList.toggle("single", chosen.shape[0] === 1);
}

$("rival").addEventListener("change", () => {
  const [index, map] = $("rival").value.split(":").map(Number);
  Object.assign(state.other, { index, map, chosen: true });
  show();
});
$("rival-head").addEventListener("change", () => {
  Object.assign(state.other, { head: Number($("rival-head").value), chosen: true });
  show();
});
