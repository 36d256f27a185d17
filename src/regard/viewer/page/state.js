// The current selection, and the views that can show it.

const state = {
  index: 0, view: "matrix", map: 0, head: 0, row: 0, column: 0,
  numbers: false, scale: "map", words: false, threshold: 0.1, projected: false, areas: 12, every: false, hypothesis: 0,
  other: { index: -1, map: 0, head: 0, chosen: false }, palette: "viridis", theme: "auto",
};
const record = () => records[state.index];
const currentMap = () => record().maps[state.map];
const current = () => matrixOf(record(), currentMap(), state.head);
// The weight of the darkest colour: one for the whole map, so that a colour means the same in every row, unless scaled by row.
// All updates of a training share one scale, so that growing weights are visible.
function limitOf(matrix, row) {
  if (state.scale === "row" && row !== undefined) return largest(rowOf(matrix, row)) || 1;
  return Math.max(state.scale === "one" ? 1 : 0, largestOver(matrix)) || 1;
}
// Likewise of the weights of areas.
function areaLimit({ extents, weights }, row) {
  if (state.scale === "row") return largest(weights.subarray(row * extents.length, (row + 1) * extents.length)) || 1;
  return Math.max(state.scale === "one" ? 1 : 0, largest(weights)) || 1;
}
// The colours of a map, and the numbers at their ends.
function legendOf(matrix, limit = limitOf(matrix)) {
  const top = state.scale === "row" ? "largest of each row" : limit;
  return matrix.map.signed ? legend(state.scale === "row" ? "" : -limit, top, differenceColor, "score") : legend(0, top, color, matrix.map.method ? "score" : "weight");
}
const drawable = (map) => Boolean(map) && map.shape[1] > 0 && map.shape[2] > 0;

const MOST_IN_FLOW = 300;
const VIEWS = []; // filled by the views themselves: { id, name, fits(r, map), here, draw() -> nodes, focus, drawn() }

// A view is offered if it can draw some map of the record, and then draws that map.
const fitting = () => VIEWS.filter((view) => view.fits(record(), currentMap()) || (!view.here && mapFor(view) >= 0));
const KINDS = ["alignment", "cross", "image", "co-attention", "hops", "self"];

// The first map that a view can draw, in order of preference of the kinds.
function mapFor(view) {
  const r = record();
  const places = r.maps.map((_, i) => i).filter((i) => view.fits(r, r.maps[i]));
  const order = (i) => KINDS.indexOf(r.maps[i].kind) + (r.maps[i].method ? KINDS.length : 0);
  return places.length ? places.reduce((best, i) => (order(i) < order(best) ? i : best)) : -1;
}
const viewOf = (id) => VIEWS.find((view) => view.id === id);

// The map of the same layer in the other direction: from this one's keys to its queries.
function reverseOf(r, map) {
  if (map.kind !== "co-attention") return -1;
  return r.maps.findIndex((other) => other !== map && other.kind === map.kind && other.query === map.key && other.key === map.query && other.layer === map.layer);
}

function firstView(r, map) {
  if (!map) return r.hypotheses.length ? "beam" : "matrix";
  if (map.kind === "hops") return "text";
  return isGrid(r, map.key) ? "image" : "matrix";
}

// Whether two records are of the same input: they read the same text or image, be it in other tokens.
const sameText = (one, other) => Boolean(one.text) && one.text === other.text;
const sameInput = (r, other) => Object.keys(r.items).some((name) => name in other.items && (sameText(r.items[name], other.items[name]) || sameItems(r, name, other, name)));

// The other half of a comparison: a map of the same items, or of those of the same name in another record of the same input.
function rivals() {
  const found = [];
  const own = current();
  const group = currentGroup();
  records.forEach((r, index) => r.maps.forEach((map, place) => {
    // Of this example at another update only the same map: there may be hundreds.
    if (index !== state.index && group.includes(index) && map.name !== own.map.name) return;
    const other = index !== state.index || place !== state.map;
    const apart = map.shape[0] > 1 || other;
    const same = sameItems(r, map.key, own.r, own.map.key) || (index !== state.index && map.key === own.map.key && isGrid(r, map.key) === isGrid(own.r, own.map.key) && sameInput(r, own.r));
    if (apart && drawable(map) && same) found.push({ index, map: place });
  }));
  return found;
}
