// A matrix of cells with names on two sides, driven by pointer and keyboard: a table up to some size, a canvas above it.

const MOST_CELLS = 4000;

// what: { id, query, key, rows, columns, weights, corner, numbers, room, color(weight, row), words(row, column), pointed(row, column, focus) }
function gridOf(what) {
  return what.rows * what.columns <= MOST_CELLS ? tableGrid(what) : canvasGrid(what);
}

function cellSize(what) {
  const longest = Math.max(what.rows, what.columns);
  const [widest, size, gap, round] = longest <= 26 ? [34, ".92rem", 2, 4] : longest <= 48 ? [24, ".82rem", 2, 3] : longest <= 90 ? [15, ".7rem", 1, 2] : [11, ".58rem", 0, 0];
  // Shrink a little where that spares scrolling.
  const cell = Math.min(widest, Math.max(22, Math.floor(what.room / what.columns) - gap));
  return { cell, size, gap, round };
}

function tableGrid(what) {
  const { cell, size, gap, round } = cellSize(what);
  const node = el("table", { class: "matrix", role: "grid", id: what.id, "aria-label": what.aria });
  for (const [name, value] of [["--cell", `${cell}px`], ["--size", size], ["--gap", `${gap}px`], ["--round", `${round}px`]]) node.style.setProperty(name, value);
  const upright = cell >= 22 && what.key.every((token) => letters(token) <= 2 || (letters(token) <= 3 && /^\d+,\d+$/.test(token)));
  const head = el("tr", { role: "row" }, el("td", { role: "presentation" }, el("bdi", {}, what.corner[0]), " →", el("br"), el("bdi", {}, what.corner[1]), " ↓"));
  for (const token of what.key) {
    const inner = label(token);
    inner.classList.add(upright ? "upright" : "turned");
    head.append(el("th", { scope: "col", role: "columnheader", title: token }, inner));
  }
  const body = el("tbody", { role: "rowgroup" });
  for (let row = 0; row < what.rows; row++) {
    const line = el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader", title: what.query[row] }, label(what.query[row])));
    for (let column = 0; column < what.columns; column++) {
      const weight = what.weights[row * what.columns + column];
      const cellNode = document.createElement("td");
      cellNode.setAttribute("role", "gridcell");
      cellNode.tabIndex = -1;
      cellNode.dataset.row = row;
      cellNode.dataset.column = column;
      cellNode.textContent = what.short ? what.short(weight) : short(weight);
      paint(cellNode, what.color(weight, row));
      line.append(cellNode);
    }
    body.append(line);
  }
  node.append(el("thead", { role: "rowgroup" }, head), body);
  node.classList.toggle("numbers", Boolean(what.numbers) && cell >= 22);
  const scroll = el("div", { class: "scroll" }, node);
  const at = (row, column) => node.tBodies[0].rows[row].cells[column + 1];

  function point(row, column, focus) {
    for (const lit of node.querySelectorAll(".on, .lit")) lit.classList.remove("on", "lit");
    const old = node.querySelector("td[tabindex='0']");
    if (old) old.tabIndex = -1;
    const target = at(row, column);
    target.tabIndex = 0;
    target.classList.add("on");
    target.setAttribute("aria-label", what.words(row, column));
    target.parentNode.cells[0].classList.add("lit");
    node.tHead.rows[0].cells[column + 1].classList.add("lit");
    if (focus) {
      target.focus({ preventScroll: true });
      target.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  const placeOf = (event) => {
    const target = event.target.closest("tbody td");
    return target && [Number(target.dataset.row), Number(target.dataset.column)];
  };
  const tell = (row, column) => {
    what.pointed(row, column);
    point(row, column, false);
    tipAt(at(row, column).getBoundingClientRect(), what.tip(row, column));
  };
  scroll.addEventListener("scroll", hideTip);
  node.addEventListener("pointerover", (event) => {
    const place = placeOf(event);
    if (place) tell(...place);
    else hideTip();
  });
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (!place) return;
    what.pointed(...place);
    point(...place, true);
  });
  node.addEventListener("keydown", (event) => {
    const place = placeOf(event);
    const next = place && moved(event, place, what);
    if (!next) return;
    what.pointed(...next);
    point(...next, true);
    tipAt(at(...next).getBoundingClientRect(), what.tip(...next));
  });
  return { node: scroll, point };
}

// Where a key leads from a cell, or null if it leads nowhere.
function moved(event, [row, column], { rows, columns }) {
  const far = event.ctrlKey || event.metaKey;
  const moves = {
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0],
    Home: [far ? -rows : 0, -columns], End: [far ? rows : 0, columns],
  };
  const move = moves[event.key];
  if (!move || event.altKey) return null;
  event.preventDefault();
  event.stopPropagation();
  return [within(row + move[0], 0, rows - 1), within(column + move[1], 0, columns - 1)];
}

function hideTip() {
  $("tip").hidden = true;
}

function tipAt(place, parts) {
  const box = $("tip");
  box.replaceChildren(...parts);
  box.hidden = false;
  const own = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(place.left + place.width / 2 - own.width / 2, innerWidth - own.width - 8))}px`;
  box.style.top = `${place.top - own.height - 8 < 4 ? place.bottom + 8 : place.top - own.height - 8}px`;
}
