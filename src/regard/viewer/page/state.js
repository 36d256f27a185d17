// What is being looked at, and which views can show it.

const state = {
  index: 0, view: "matrix", map: 0, head: 0, row: 0, column: 0,
  numbers: false, whole: false, threshold: 0.1, projected: false, areas: 12, every: false, hypothesis: 0,
  other: { index: -1, map: 0, head: 0, chosen: false }, palette: "viridis", theme: "auto",
};
const record = () => records[state.index];
const currentMap = () => record().maps[state.map];
const current = () => matrixOf(record(), currentMap(), state.head);
// Of a training all updates have the same colours: else a weight that grows would look as it did.
const limitOf = (matrix) => (state.whole ? Math.max(1, largestOver(matrix)) : largestOver(matrix)) || 1;
const drawable = (map) => Boolean(map) && map.shape[1] > 0 && map.shape[2] > 0;

const MOST_IN_FLOW = 300;
const VIEWS = []; // filled by the views themselves: { id, name, fits(r, map), here, draw() -> nodes, focus, drawn() }

// A view is offered where some map of the record has what it draws; it is then drawn of that map.
const fitting = () => VIEWS.filter((view) => view.fits(record(), currentMap()) || (!view.here && mapFor(view) >= 0));
const KINDS = ["alignment", "cross", "image", "co-attention", "hops", "self"];

// The first map that a view can draw, in the order in which kinds are looked at.
function mapFor(view) {
  const r = record();
  const places = r.maps.map((_, i) => i).filter((i) => view.fits(r, r.maps[i]));
  return places.length ? places.reduce((best, i) => (KINDS.indexOf(r.maps[i].kind) < KINDS.indexOf(r.maps[best].kind) ? i : best)) : -1;
}
const viewOf = (id) => VIEWS.find((view) => view.id === id);

// The map of the same layer that looks the other way: from this one's keys to its queries.
function reverseOf(r, map) {
  if (map.kind !== "co-attention") return -1;
  return r.maps.findIndex((other) => other !== map && other.kind === map.kind && other.query === map.key && other.key === map.query && other.layer === map.layer);
}

function firstView(r, map) {
  if (!map) return r.hypotheses.length ? "beam" : "matrix";
  if (map.kind === "hops") return "text";
  return isGrid(r, map.key) ? "image" : "matrix";
}

// The other half of a comparison: the same items read, in another record, map or head.
function rivals() {
  const found = [];
  const own = current();
  const group = currentGroup();
  records.forEach((r, index) => r.maps.forEach((map, place) => {
    // Of this example at another update only the same map: there may be hundreds.
    if (index !== state.index && group.includes(index) && map.name !== own.map.name) return;
    const other = index !== state.index || place !== state.map;
    const apart = map.shape[0] > 1 || other;
    if (apart && drawable(map) && map.shape[2] === own.columns && sameItems(r, map.key, own.r, own.map.key)) found.push({ index, map: place });
  }));
  return found;
}
