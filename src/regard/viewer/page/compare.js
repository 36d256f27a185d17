// Two matrices side by side: two models, layers, heads or methods; and their difference where both sides agree.

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
    const alike = one.map.method === other.map.method;
    // Methods have different units: each has its own colours.
    const limits = alike ? Array(2).fill(Math.max(limitOf(one), limitOf(other))) : [limitOf(one), limitOf(other)];
    const sameRows = sameShown(one, one.map.query, other, other.map.query);
    const same = sameRows && sameShown(one, one.map.key, other, other.map.key);
    this.grids = [];
    const part = (matrix, id, top, name, changes = {}) => partOf(this.grids, matrix, id, { limit: top, name, same, ...changes });
    const parts = [part(one, "one", limits[0], nameOfSide(one, 0)), part(other, "other", limits[1], nameOfSide(other, 1))];
    const legends = alike ? [legendOf(one, limits[0])] : [one, other].map((matrix, i) => legendOf(matrix, limits[i]));
    const rows = sameRows ? one.query.map((_, row) => [row, row]) : common(one.query, other.query);
    const why = noDifference(one, other, rows, alike);
    if (why) return [el("div", { class: "pair" }, ...parts), el("p", { class: "told", id: "no-difference" }, why), ...legends];
    const columns = one.columns;
    const sides = rows.map(([a, b]) => [rowOf(one, a), rowOf(other, b)]);
    const weights = Float32Array.from({ length: rows.length * columns }, (_, i) => sides[Math.floor(i / columns)][0][i % columns] - sides[Math.floor(i / columns)][1][i % columns]);
    const query = rows.map(([row]) => one.query[row]);
    const top = largest(weights) || 1;
    const mean = weights.reduce((sum, value) => sum + Math.abs(value), 0) / rows.length;
    parts.push(part({ ...one, query, rows: rows.length, weights }, "difference", top, "A − B", {
      color: (value) => differenceColor(value / top), short: (value) => (Math.abs(value) < 0.005 ? "" : signed(value).replace(/(\.\d\d)\d+$/, "$1").replace("0.", ".")),
      limit: top, low: -top, colors: arms, limits: null,
      tip: (row, column) => {
        const [a, b] = sides[row].map((values) => values[column]);
        return [label(query[row]), " ← ", label(one.key[column]), `  ${told(a)} − ${told(b)} = `, el("b", {}, signed(weights[row * columns + column]))];
      },
      words: (row, column) => `${query[row]}, from ${one.key[column]}: difference ${signed(weights[row * columns + column])}`,
    }));
    const said = el("p", { class: "told", id: "distance" }, "Weight that differs, per row: ", el("b", {}, (mean / 2).toFixed(3)));
    if (!sameRows) said.append(` · difference of the ${rows.length} rows that both have, of ${one.rows} and ${other.rows}`);
    return [el("div", { class: "pair" }, ...parts), said, ...legends, legend(-top, top, differenceColor, "difference")];
  },
  drawn() {
    for (const grid of this.grids) grid.point(0, 0, false);
  },
});

// Whether two sides show the same: the same labels, and the same image.
const sameShown = (one, name, other, otherName) =>
  sameLabels(name === one.map.query ? one.query : one.key, otherName === other.map.query ? other.query : other.key) && one.r.items[name].image === other.r.items[otherName].image;

function noDifference(one, other, rows, alike) {
  if (!alike) return "Scores of two methods are in units of their own, so there is no difference to draw.";
  if (!sameShown(one, one.map.key, other, other.map.key)) {
    const words = !state.words && (hasWords(one.r, one.map) || hasWords(other.r, other.map));
    return `The two maps have different keys, so there is no difference to draw.${words ? " Whole words may be the same: see Words." : ""}`;
  }
  return rows.length ? "" : "The two maps have no query in common, so there is no difference to draw.";
}

// Hovering a row marks it in all matrices with the same rows.
function partOf(grids, matrix, id, changes) {
  const { limit, name, same } = changes;
  const grid = gridOf({
    ...matrix, id, numbers: state.numbers, room: ($("view").parentNode.clientWidth - 300) / 3,
    aria: `Attention weights: ${name}`, corner: [matrix.map.key, matrix.map.query],
    ...cellColors(matrix, limit), tip: tipOf(matrix), words: wordsOf(matrix),
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

// Ranking of maps to compare with: another model first, then the same map, then rows that allow a difference.
function likeness({ index, map }) {
  const other = records[index].maps[map];
  const own = currentMap();
  const model = index !== state.index && records[index].model !== record().model;
  const rows = sameItems(records[index], other.query, record(), own.query);
  const keys = sameItems(records[index], other.key, record(), own.key);
  return 10 * model + 6 * keys + 4 * (other.name === own.name) + 3 * rows + 2 * (other.kind === own.kind) + (other.layer === own.layer) / 2;
}

// Keep the selection while it is comparable; else take the best ranked map.
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
