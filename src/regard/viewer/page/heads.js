// Every layer and head as a small map; a click enlarges it.

const THUMBNAIL = 256;

// Maps that belong together: the same kind between the same items, one row of heads each; or all methods of explanation.
const family = (r, map) => r.maps.map((_, i) => i).filter((i) => {
  const other = r.maps[i];
  if (!drawable(other) || other.query !== map.query || other.key !== map.key) return false;
  return map.method ? Boolean(other.method) : other.kind === map.kind && !other.method;
});
const familySize = (r, map) => family(r, map).reduce((sum, i) => sum + r.maps[i].shape[0], 0);

VIEWS.push({
  id: "heads",
  name: "Layers × heads",
  focus: false,
  wide: true,
  fits: (r, map) => drawable(map) && familySize(r, map) > 1,
  draw() {
    const r = record();
    const map = currentMap();
    const rows = family(r, map);
    const most = Math.max(...rows.map((i) => r.maps[i].shape[0]));
    const room = ($("view").parentNode.clientWidth - 150) / most - 32;
    const side = within(room, 52, 190);
    const grid = el("div", { class: "heads", id: "heads", role: "group", "aria-label": `${capital(map.kind)} attention of all layers and heads` });
    grid.style.gridTemplateColumns = `${map.method ? "" : "auto "}repeat(${map.method ? Math.min(rows.length, 5) : most}, max-content)`;
    for (const i of rows) {
      if (map.method) {
        grid.append(thumbnail(matrixOf(r, r.maps[i], MEAN), i, 0, side));
        continue;
      }
      grid.append(el("h3", {}, label(r.maps[i].name)));
      for (let head = 0; head < most; head++) {
        grid.append(head < r.maps[i].shape[0] ? thumbnail(matrixOf(r, r.maps[i], head), i, head, side) : el("span"));
      }
    }
    grid.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) zoomInto(Number(button.dataset.map), Number(button.dataset.head));
    });
    grid.addEventListener("keydown", (event) => walkHeads(event, grid));
    const heads = `${count(rows.length, "map")}, ${count(familySize(r, map), "head")}; every head`;
    const note = `${map.method ? `${count(rows.length, "method")}; each` : heads} has its own colours, from 0 to its largest weight`;
    return [el("div", { class: "scroll" }, grid), el("div", { class: "scale" }, note)];
  },
});

function thumbnail(matrix, map, head, side) {
  const factor = Math.ceil(Math.max(matrix.rows, matrix.columns) / THUMBNAIL);
  const rows = Math.ceil(matrix.rows / factor);
  const columns = Math.ceil(matrix.columns / factor);
  const canvas = el("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const scale = side / Math.max(rows, columns);
  canvas.style.width = `${Math.max(8, columns * scale)}px`;
  canvas.style.height = `${Math.max(8, rows * scale)}px`;
  const pen = canvas.getContext("2d");
  const top = largest(matrix.weights) || 1;
  const colors = matrix.map.signed ? [arms, -top] : [];
  pen.putImageData(pixels(pooled(matrix, factor, rows, columns), pen.createImageData(columns, rows), top, ...colors), 0, 0);
  const name = matrix.map.method ? matrix.map.name : headName(matrix.map, head);
  const said = bits(matrix);
  const attributes = { type: "button", "data-map": map, "data-head": head, "aria-label": `${matrix.map.name}, ${name}, mean entropy ${said}`, title: "Enlarge" };
  return el("button", attributes, canvas, el("span", {}, el("b", {}, name), " ", said));
}

// The largest weight of each square of `factor` x `factor` cells.
function pooled({ weights, rows, columns }, factor, high, wide) {
  if (factor === 1) return weights;
  const found = new Float32Array(high * wide);
  for (let row = 0; row < rows; row++) {
    const line = Math.floor(row / factor) * wide;
    for (let column = 0; column < columns; column++) {
      const at = line + Math.floor(column / factor);
      const weight = weights[row * columns + column];
      if (Math.abs(weight) > Math.abs(found[at])) found[at] = weight;
    }
  }
  return found;
}

function zoomInto(map, head) {
  state.map = map;
  state.head = head;
  state.view = "matrix";
  startAt(state.row);
  show();
  $("tab-matrix").focus();
}

function walkHeads(event, grid) {
  const buttons = [...grid.querySelectorAll("button")];
  const at = buttons.indexOf(event.target.closest("button"));
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (at < 0 || !(move || down)) return;
  event.preventDefault();
  event.stopPropagation();
  const below = () => {
    const { head } = buttons[at].dataset;
    const column = buttons.filter((button) => button.dataset.head === head);
    return column[within(column.indexOf(buttons[at]) + down, 0, column.length - 1)];
  };
  (down ? below() : buttons[within(at + move, 0, buttons.length - 1)]).focus();
}
