// A matrix of any size: only the visible part is drawn, directly from the weights; a pixel that covers several cells shows
// their largest weight.

const SIZES = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 14, 20, 28];
const LEFT = 120;
const ABOVE = 96;

function canvasGrid(what) {
  const { rows, columns, weights } = what;
  const canvas = el("canvas", { "aria-hidden": "true" });
  const space = el("div", { class: "space" }, canvas);
  const scroll = el("div", { class: "big", id: what.id, tabindex: 0, role: "application", "aria-label": `${what.aria}. Arrow keys move the cell, plus and minus zoom.` }, space);
  const out = el("button", { type: "button", class: "zoom", title: "Smaller cells (−)" }, "−");
  const into = el("button", { type: "button", class: "zoom", title: "Larger cells (+)" }, "+");
  const size = el("output", { class: "zoomed" });
  const node = el("div", { class: "bigbox" }, scroll, el("div", { class: "tools" }, "Cells", out, into, size));
  let cell = 1;
  let place = [0, 0];
  let waiting = false;

  const visible = () => [Math.max(1, scroll.clientWidth - LEFT), Math.max(1, scroll.clientHeight - ABOVE)];

  function resize(next, keep) {
    const [width, height] = visible();
    const from = keep || place;
    const x = from[1] * cell - scroll.scrollLeft;
    const y = from[0] * cell - scroll.scrollTop;
    cell = next;
    space.style.width = `${LEFT + columns * cell}px`;
    space.style.height = `${ABOVE + rows * cell}px`;
    scroll.scrollLeft = from[1] * cell - within(x, 0, width);
    scroll.scrollTop = from[0] * cell - within(y, 0, height);
    size.textContent = cell < 1 ? `${(1 / cell).toFixed(1)} to a pixel` : `${count(Number(cell.toFixed(1)), "pixel")} each`;
    draw();
  }

  const step = (by) => {
    const next = by > 0 ? SIZES.find((size) => size > cell * 1.01) : SIZES.findLast((size) => size < cell * 0.99);
    if (next) resize(next);
  };

  function draw() {
    waiting = false;
    if (!scroll.isConnected) return;
    const ratio = Math.min(globalThis.devicePixelRatio || 1, 2);
    const [width, height] = [scroll.clientWidth, scroll.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    drawCells(pen, ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawNames(pen, width, height);
  }

  function drawCells(pen, ratio) {
    const [width, height] = visible();
    const wide = Math.ceil(Math.min(width, columns * cell - scroll.scrollLeft) * ratio);
    const high = Math.ceil(Math.min(height, rows * cell - scroll.scrollTop) * ratio);
    if (wide <= 0 || high <= 0) return;
    const columnAt = Int32Array.from({ length: wide + 1 }, (_, x) => Math.min(columns - 1, Math.floor((scroll.scrollLeft + x / ratio) / cell)));
    const rowAt = Int32Array.from({ length: high + 1 }, (_, y) => Math.min(rows - 1, Math.floor((scroll.scrollTop + y / ratio) / cell)));
    const found = new Float32Array(wide * high);
    for (let y = 0; y < high; y++) {
      if (y && rowAt[y] === rowAt[y - 1] && rowAt[y + 1] === rowAt[y]) {
        found.copyWithin(y * wide, (y - 1) * wide, y * wide);
        continue;
      }
      const lastRow = Math.max(rowAt[y] + 1, rowAt[y + 1]);
      for (let x = 0; x < wide; x++) {
        const lastColumn = Math.max(columnAt[x] + 1, columnAt[x + 1]);
        let top = 0;
        for (let r = rowAt[y]; r < lastRow; r++) {
          const share = what.limits ? what.limit / what.limits[r] : 1;
          for (let c = columnAt[x]; c < lastColumn; c++) {
            const weight = weights[r * columns + c] * share;
            if (Math.abs(weight) > Math.abs(top)) top = weight;
          }
        }
        found[y * wide + x] = top;
      }
    }
    const image = pen.createImageData(wide, high);
    pixels(found, image, what.limit, what.colors || ramp, what.low || 0);
    pen.putImageData(image, Math.round(LEFT * ratio), Math.round(ABOVE * ratio));
  }

  function drawNames(pen, width, height) {
    const style = getComputedStyle(scroll);
    const every = Math.max(1, Math.ceil(11 / cell));
    pen.font = `${Math.min(13, Math.max(9, cell * 0.8))}px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const name = (labels, i) => (every === 1 ? labels[i].slice(0, 40) : String(i + 1));
    // Numbers instead of names where there is no room for these: round ones.
    const stride = every === 1 ? 1 : [10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((size) => size * cell >= 42) || 10000;
    const lit = (i, on) => { pen.fillStyle = style.getPropertyValue(i === on ? "--accent" : "--soft"); };
    pen.save();
    pen.beginPath();
    pen.rect(0, ABOVE, LEFT, height - ABOVE);
    pen.clip();
    pen.textAlign = "right";
    for (let row = Math.floor(scroll.scrollTop / cell); row < rows; row++) {
      const y = ABOVE + (row + 0.5) * cell - scroll.scrollTop;
      if (y > height) break;
      if (every > 1 && (row + 1) % stride) continue;
      lit(row, place[0]);
      pen.fillText(name(what.query, row), LEFT - 8, y, LEFT - 10);
    }
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, ABOVE);
    pen.clip();
    pen.textAlign = "left";
    for (let column = Math.floor(scroll.scrollLeft / cell); column < columns; column++) {
      const x = LEFT + (column + 0.5) * cell - scroll.scrollLeft;
      if (x > width) break;
      if (every > 1 && (column + 1) % stride) continue;
      pen.save();
      pen.translate(x, ABOVE - 8);
      pen.rotate(-Math.PI / 2);
      lit(column, place[1]);
      pen.fillText(name(what.key, column), 0, 0, ABOVE - 10);
      pen.restore();
    }
    pen.restore();
    // The selected cell: two thin lines that cross in it, and a frame if it is large enough.
    const x = LEFT + place[1] * cell - scroll.scrollLeft;
    const y = ABOVE + place[0] * cell - scroll.scrollTop;
    const side = Math.max(cell, 1);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, ABOVE, width - LEFT, height - ABOVE);
    pen.clip();
    pen.strokeStyle = style.getPropertyValue("--warm");
    pen.globalAlpha = 0.45;
    pen.strokeRect(LEFT, y + side / 2, columns * cell - scroll.scrollLeft, 0);
    pen.strokeRect(x + side / 2, ABOVE, 0, rows * cell - scroll.scrollTop);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    pen.strokeRect(x - 1, y - 1, Math.max(side, 4) + 2, Math.max(side, 4) + 2);
    pen.restore();
  }

  function later() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  function boxOf([row, column]) {
    const frame = scroll.getBoundingClientRect();
    const left = frame.left + LEFT + column * cell - scroll.scrollLeft;
    const top = frame.top + ABOVE + row * cell - scroll.scrollTop;
    return { left, top, width: cell, bottom: top + Math.max(cell, 4) };
  }

  function point(row, column, focus) {
    place = [row, column];
    if (focus) {
      const [width, height] = visible();
      scroll.scrollLeft = within(scroll.scrollLeft, (column + 1) * cell - width, column * cell);
      scroll.scrollTop = within(scroll.scrollTop, (row + 1) * cell - height, row * cell);
      scroll.focus({ preventScroll: true });
    }
    later();
  }

  const under = (event) => {
    const frame = scroll.getBoundingClientRect();
    const column = Math.floor((event.clientX - frame.left - LEFT + scroll.scrollLeft) / cell);
    const row = Math.floor((event.clientY - frame.top - ABOVE + scroll.scrollTop) / cell);
    const inside = event.clientX > frame.left + LEFT && event.clientY > frame.top + ABOVE && row >= 0 && column >= 0 && row < rows && column < columns;
    return inside ? [row, column] : null;
  };
  const tell = (next, focus) => {
    what.pointed(...next);
    point(...next, focus);
    tipAt(boxOf(next), what.tip(...next));
  };
  scroll.addEventListener("scroll", () => { hideTip(); later(); });
  scroll.addEventListener("pointermove", (event) => {
    const next = under(event);
    if (next) tell(next, false);
    else hideTip();
  });
  scroll.addEventListener("pointerleave", hideTip);
  scroll.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") step(1);
    if (event.key === "-") step(-1);
    const next = moved(event, place, what);
    if (next) tell(next, true);
  });
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    step(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });
  out.addEventListener("click", () => step(-1));
  into.addEventListener("click", () => step(1));
  new ResizeObserver(later).observe(scroll);
  requestAnimationFrame(() => {
    const [width, height] = visible();
    resize(within(Math.min(width / columns, height / rows), SIZES[0], SIZES[SIZES.length - 1]), [0, 0]);
  });
  return { node, point, redraw: later };
}
