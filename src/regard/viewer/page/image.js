// Attention over an image: cells by weight, or boxes of areas; step by step, or all steps at once.

const MOST_STEPS = 60;

VIEWS.push({
  id: "image",
  name: "Image",
  focus: true,
  stepped: true,
  wide: true,
  fits: (r, map) => drawable(map) && isGrid(r, map.key),
  draw() {
    const matrix = current();
    const width = Math.min(620, $("view").parentNode.clientWidth - ($("view").parentNode.clientWidth > 900 ? 420 : 20));
    const large = overlay(matrix, state.row, width);
    large.id = "overlay";
    const caption = el("div", { class: "caption", id: "caption", role: "group", "aria-label": `Steps of ${matrix.map.query}` });
    matrix.query.forEach((token, row) => caption.append(el("button", { type: "button", "data-at": row, "aria-pressed": row === state.row }, label(token))));
    caption.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) stepTo(Number(button.dataset.at), "#caption button[aria-pressed=true]");
    });
    const every = [];
    if (state.every) {
      const film = el("div", { class: "film", id: "film" });
      matrix.query.slice(0, MOST_STEPS).forEach((token, row) => film.append(el("figure", {}, overlay(matrix, row, 150), el("figcaption", {}, label(token)))));
      every.push(film);
      if (matrix.rows > MOST_STEPS) every.push(el("div", { class: "scale" }, `the first ${MOST_STEPS} of ${matrix.rows} steps`));
    }
    return [el("div", { class: "picture" }, large), caption, keyOf(matrix), ...every];
  },
});

// The legend of the picture.
function keyOf(matrix) {
  const weights = rowOf(matrix, state.row);
  const limit = limitOf(matrix, state.row);
  if (matrix.map.areas && !state.projected) return el("div", { class: "scale", id: "shown" }, shownAreas(matrix).said);
  if (!matrix.r.items[matrix.map.key].image) return legendOf(matrix, limit);
  const spread = bits({ weights, rows: 1, columns: matrix.columns });
  return el("div", { class: "scale" }, `a cell in full light: ${matrix.map.method ? "score" : "weight"} ${brief(limit, matrix.map)}, in the dark: 0${matrix.map.signed ? " or less" : ""}`, el("span", { class: "said" }, `entropy ${spread}`));
}

function overlay(matrix, row, width) {
  const { rows, columns, image, size } = matrix.r.items[matrix.map.key];
  const height = width * (size ? size[1] / size[0] : rows / columns);
  const [wide, high] = [width / columns, height / rows];
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Attention of ${matrix.query[row]}` });
  if (image) picture.append(shape("image", { href: image, width, height, preserveAspectRatio: "none" }));
  const byArea = matrix.map.areas && !state.projected;
  const weights = rowOf(matrix, row);
  const limit = limitOf(matrix, row);
  if (!byArea || !image) {
    weights.forEach((weight, i) => {
      const part = byArea ? 0 : weight / limit;
      const cell = shape("rect", {
        class: "cell", x: (i % columns) * wide, y: Math.floor(i / columns) * high, width: wide, height: high, "data-at": i, "data-weight": exact(weight),
        // Over an image: the darker a cell, the lower its weight.
        fill: image ? "#0b0d10" : matrix.tint(part).ground, "fill-opacity": image ? (0.78 * (1 - Math.sqrt(Math.max(0, part)))).toFixed(3) : 1,
      }, shape("title", {}, `${matrix.key[i]}: ${exact(weight)}`));
      picture.append(cell);
    });
  }
  if (byArea) picture.append(...boxes(matrix, row, wide, high));
  return picture;
}

function boxes(matrix, row, wide, high) {
  const { own, extents, order, limit } = shownAreas(matrix, row);
  // The strongest last: it lies above the others.
  return order.reverse().flatMap((i) => {
    const [top, left, height, width] = extents[i];
    const place = { x: left * wide + 1.5, y: top * high + 1.5, width: width * wide - 3, height: height * high - 3, rx: 3 };
    const part = own[i] / limit;
    const name = `${areaName(matrix, extents[i])}: ${exact(own[i])}`;
    const under = shape("rect", { ...place, class: "under", "stroke-opacity": (0.1 + 0.6 * part).toFixed(3), "stroke-width": (2 + 4 * part).toFixed(2) });
    const box = shape("rect", { ...place, class: "box", "stroke-opacity": (0.15 + 0.85 * part).toFixed(3), "stroke-width": (1 + 3 * part).toFixed(2), "data-extent": extents[i].join(","), "data-weight": exact(own[i]) }, shape("title", {}, name));
    return [under, box];
  });
}
