// One example at several updates of a training: a slider over them, with the validation loss beside it.

const PLAY_EACH = 500;
const CURVE = { width: 220, height: 46, edge: 4 };
let groups = []; // of the numbers of records: those of one example, ordered by update; others alone
let groupOf = [];
let playing = null;

function readGroups() {
  const found = new Map();
  records.forEach((r, i) => {
    const key = r.point ? JSON.stringify([r.model, r.title]) : i;
    found.set(key, [...(found.get(key) || []), i]);
  });
  groups = [...found.values()];
  for (const group of groups) if (group.length > 1) group.sort((a, b) => records[a].point.update - records[b].point.update);
  groupOf = [];
  groups.forEach((group, place) => { for (const i of group) groupOf[i] = place; });
}

const currentGroup = () => groups[groupOf[state.index]] || [state.index];
const lossOf = (point) => (point.loss === null ? "not measured" : exact(Number(point.loss.toPrecision(4))));
const whenOf = (r) => (r.point ? `update ${r.point.update.toLocaleString("en")} · ` : "");
const pointName = (point) => `update ${point.update.toLocaleString("en")}, validation loss ${lossOf(point)}`;

// The largest weight of this map and head at any update.
const tops = new WeakMap();
function largestOver(matrix) {
  const own = largest(matrix.weights);
  const group = matrix.r.point ? groups[groupOf[records.indexOf(matrix.r)]] : null;
  if (!group || group.length < 2) return own;
  return group.reduce((top, i) => {
    const map = records[i].maps.find((other) => other.name === matrix.map.name);
    if (!map || !drawable(map) || matrix.head >= map.shape[0]) return top;
    if (!tops.has(map)) tops.set(map, new Map());
    const known = tops.get(map);
    const key = `${matrix.head} ${merging()}`;
    if (!known.has(key)) known.set(key, largest(matrixOf(records[i], map, matrix.head).weights));
    return Math.max(top, known.get(key));
  }, own);
}

function settleHistory() {
  const group = currentGroup();
  $("history").hidden = group.length < 2;
  if (group.length < 2) return stop();
  const at = group.indexOf(state.index);
  const { point } = records[state.index];
  $("update").max = group.length - 1;
  $("update").value = at;
  $("update").setAttribute("aria-valuetext", pointName(point));
  $("update-value").replaceChildren("update ", el("b", {}, point.update.toLocaleString("en")), " · validation loss ", el("b", {}, lossOf(point)));
  drawCurve(group.map((i) => records[i].point), at);
}

function drawCurve(points, at) {
  const { width, height, edge } = CURVE;
  const known = points.filter((point) => point.loss !== null);
  $("curve").toggleAttribute("hidden", known.length < 2);
  if (known.length < 2) return;
  const low = Math.min(...known.map((point) => point.loss));
  const high = Math.max(...known.map((point) => point.loss));
  const from = points[0].update;
  const span = points[points.length - 1].update - from || 1;
  const x = (point) => edge + ((width - 2 * edge) * (point.update - from)) / span;
  const y = (point) => edge + (height - 2 * edge) * (high > low ? (high - point.loss) / (high - low) : 0.5);
  const now = points[at];
  const marks = [
    shape("path", { class: "loss", d: known.map((point, i) => `${i ? "L" : "M"}${x(point).toFixed(1)} ${y(point).toFixed(1)}`).join("") }),
    shape("line", { class: "now", x1: x(now), x2: x(now), y1: 0, y2: height }),
  ];
  if (now.loss !== null) marks.push(shape("circle", { class: "here", cx: x(now).toFixed(1), cy: y(now).toFixed(1), r: 3.5 }));
  $("curve").setAttribute("viewBox", `0 0 ${width} ${height}`);
  $("curve").setAttribute("aria-label", `Validation loss from ${exact(Number(known[0].loss.toPrecision(4)))} to ${exact(Number(known[known.length - 1].loss.toPrecision(4)))}, lowest ${exact(Number(low.toPrecision(4)))}`);
  $("curve").replaceChildren(...marks);
}

// Another update of the same example: map, head and cell stay.
function chooseUpdate(at) {
  const group = currentGroup();
  const { head, row, column } = state;
  const before = currentMap();
  state.index = group[within(at, 0, group.length - 1)];
  tellExample();
  const same = before ? record().maps.findIndex((other) => other.name === before.name) : -1;
  if (same < 0) {
    chooseMap(record().main);
  } else {
    Object.assign(state, { map: same, head: Math.min(head, record().maps[same].shape[0] - 1) });
    const { rows, columns } = current();
    Object.assign(state, { row: Math.min(row, Math.max(0, rows - 1)), column: Math.min(column, Math.max(0, columns - 1)) });
  }
  show();
}

function stepUpdate(by) {
  stop();
  if (!$("history").hidden) chooseUpdate(currentGroup().indexOf(state.index) + by);
}

function stop() {
  if (playing === null) return;
  clearInterval(playing);
  playing = null;
  tellPlaying();
}

function tellPlaying() {
  $("play").textContent = playing === null ? "Play" : "Pause";
  $("play").setAttribute("aria-pressed", playing !== null);
}

function togglePlay() {
  if (playing !== null) return stop();
  const last = currentGroup().length - 1;
  if (currentGroup().indexOf(state.index) === last) chooseUpdate(0);
  playing = setInterval(() => {
    const next = currentGroup().indexOf(state.index) + 1;
    chooseUpdate(next);
    if (next >= currentGroup().length - 1) stop();
  }, PLAY_EACH);
  tellPlaying();
}

$("update").addEventListener("input", () => { stop(); chooseUpdate(Number($("update").value)); });
$("play").addEventListener("click", togglePlay);
