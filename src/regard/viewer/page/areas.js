// Areas of a sequence: brackets under its words, as dark as their weight; or the weight they give to each word.

const LANE = 29;
const LEAST_AREA = 0.005;

VIEWS.push({
  id: "areas",
  name: "Areas",
  focus: true,
  stepped: true,
  wide: true,
  stacked: true, // its line of words needs the whole width
  fits: (r, map) => drawable(map) && Boolean(map.areas) && !isGrid(r, map.key),
  draw() {
    const matrix = current();
    const weights = rowOf(matrix, state.row);
    const limit = limitOf(matrix, state.row);
    const words = el("div", { class: "words", dir: directionOf(matrix.r, matrix.map.key) });
    matrix.key.forEach((token, i) => {
      const node = label(token, "span");
      node.dataset.at = i;
      node.dataset.weight = exact(weights[i]);
      if (state.projected) paint(node, color(weights[i] / limit));
      words.append(el("span", { class: "word" }, node, ...(state.projected ? [el("em", {}, weights[i].toFixed(2))] : [])));
    });
    const box = el("div", { class: "bracketed", id: "brackets" }, words);
    const said = state.projected ? "each word has the sum of the weights of its areas" : shownAreas(matrix).said;
    return [el("div", { class: "scroll" }, box), el("div", { class: "scale", id: "shown" }, said)];
  },
  drawn() {
    if (!state.projected) drawBrackets();
  },
});

// The strongest areas of the current row, and how many are omitted.
function shownAreas(matrix, row = state.row) {
  const areas = areasOf(matrix);
  const { extents, weights } = areas;
  const own = weights.subarray(row * extents.length, (row + 1) * extents.length);
  const order = strongest(own, state.areas).filter((i) => own[i] >= LEAST_AREA);
  return { own, extents, order, limit: areaLimit(areas, row), said: `${order.length} of ${extents.length} areas: the strongest, from a weight of ${LEAST_AREA}` };
}

function drawBrackets() {
  const matrix = current();
  const box = $("brackets");
  const { own, extents, order, limit } = shownAreas(matrix);
  const words = [...box.querySelectorAll(".words > .word")];
  const frame = box.getBoundingClientRect();
  const lanes = [];
  const marks = order.map((i) => {
    const [start, length] = extents[i];
    const ends = [words[start], words[start + length - 1]].map((word) => word.getBoundingClientRect());
    const left = Math.min(ends[0].left, ends[1].left) - frame.left + 3;
    const right = Math.max(ends[0].right, ends[1].right) - frame.left - 3;
    let lane = lanes.findIndex((taken) => taken.every(([from, to]) => right < from || left > to));
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push([left, right]);
    const y = lane * LANE;
    const name = `${areaName(matrix, extents[i])}: ${exact(own[i])}`;
    const mark = shape("g", { class: "bracket", tabindex: 0, role: "img", "aria-label": name, "data-start": start, "data-length": length, "data-weight": exact(own[i]) },
      shape("title", {}, name),
      shape("rect", { x: left, y, width: right - left, height: LANE - 4, class: "hit" }),
      shape("path", { d: `M${left} ${y + 2}v5h${right - left}v-5`, "stroke-width": (1 + (3.5 * own[i]) / limit).toFixed(2), "stroke-opacity": (0.2 + (0.8 * own[i]) / limit).toFixed(3) }),
      shape("text", { x: (left + right) / 2, y: y + 21, "text-anchor": "middle" }, own[i].toFixed(limit < 0.1 ? 3 : 2)));
    mark.addEventListener("pointerenter", () => lightWords(start, length));
    mark.addEventListener("focus", () => lightWords(start, length));
    mark.addEventListener("pointerleave", () => lightWords(0, 0));
    mark.addEventListener("blur", () => lightWords(0, 0));
    return mark;
  });
  const lines = shape("svg", { class: "brackets", width: box.scrollWidth, height: Math.max(1, lanes.length) * LANE, "aria-label": "Attended areas" }, ...marks);
  box.append(lines);
}

function lightWords(start, length) {
  $("brackets").querySelectorAll(".words > .word").forEach((word, i) => word.classList.toggle("lit", i >= start && i < start + length));
}
