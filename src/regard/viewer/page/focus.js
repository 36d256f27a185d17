// The panel beside a view: the query, and its keys with the largest weights.

const MOST_RANKED = 6;
const MOST_INLINE = 400;

function rankLine(text, weight, limit, here, map = null) {
  const bar = el("i");
  bar.style.width = `${(100 * Math.max(0, weight)) / limit}%`;
  bar.hidden = weight / limit < 0.0005;
  const item = el("li", {}, label(text), el("span", { class: "track" }, bar), el("em", {}, brief(weight, map)));
  item.classList.toggle("here", here);
  return item;
}

// The words of an area, or the place of a box.
function areaName(matrix, extent) {
  if (extent.length === 4) return `${extent[2]} × ${extent[3]} at ${extent[0] + 1},${extent[1] + 1}`;
  return labelsOf(matrix.r, matrix.map.key).slice(extent[0], extent[0] + extent[1]).join(" ");
}

function tellFocus(given) {
  const matrix = given || current();
  const { r, map } = matrix;
  const weights = rowOf(matrix, state.row);
  const pointing = ["matrix", "both", "beam"].includes(state.view);
  const probability = probabilityOf(matrix, state.row);
  $("focus-side").textContent = capital(map.query);
  $("focus-word").replaceChildren(label(matrix.query[state.row]));
  const parts = [];
  if (pointing) parts.push("from ", label(matrix.key[state.column]), " ", el("b", { id: "focus-weight" }, told(weights[state.column])));
  if (probability !== null) parts.push(parts.length ? " · " : "", "probability ", el("b", {}, probability.toFixed(3)));
  $("focus-exact").replaceChildren(...parts);
  rank(matrix, weights, pointing);
  tellAlternatives(matrix);
  const tokens = !isGrid(r, map.key) && matrix.columns <= MOST_INLINE;
  $("inline").hidden = !tokens;
  if (tokens) {
    $("inline").dir = directionOf(r, map.key);
    $("inline").replaceChildren(...painted(matrix, state.row));
  }
}

const directionOf = (r, items) => (rightToLeft(r.items[items].text || labelsOf(r, items).join(" ")) ? "rtl" : "ltr");

// A running text with the background of each token as dark as its weight.
function painted(matrix, row) {
  const weights = rowOf(matrix, row);
  const limit = limitOf(matrix, row);
  return matrix.key.flatMap((token, i) => {
    const node = label(token);
    if (Math.abs(weights[i] / limit) > 0.02) paint(node, matrix.tint(weights[i] / limit));
    return [node, el("wbr")];
  });
}

// The most probable tokens at the current position.
function tellAlternatives(matrix) {
  const found = alternativesOf(matrix, state.row);
  const some = Boolean(found && found.pairs.length);
  for (const id of ["alternatives-title", "alternatives"]) $(id).hidden = !some;
  if (!some) return;
  $("alternatives-title").replaceChildren("Most probable in place of ", label(found.token));
  $("alternatives").replaceChildren(...found.pairs.map(([token, value]) => rankLine(token, value, 1, token === found.token)));
}

// Weights that would read 0.000 and scores below 0 are omitted, except for the largest.
const ranked = (weights, map) => strongest(weights, MOST_RANKED).filter((i, place) => place === 0 || (map.method ? weights[i] > 0 : weights[i] >= 0.0005));

function rank(matrix, weights, pointing) {
  const byArea = matrix.map.areas && ["areas", "image"].includes(state.view) && !state.projected;
  const title = matrix.map.method ? "Highest scores in" : "Largest weights in";
  $("rank-title").textContent = byArea ? `Attended areas of ${matrix.map.key}` : `${title} ${matrix.map.key}`;
  if (byArea) {
    const areas = areasOf(matrix);
    const { extents, weights: all } = areas;
    const own = all.subarray(state.row * extents.length, (state.row + 1) * extents.length);
    $("rank").replaceChildren(...ranked(own, matrix.map).map((i) => rankLine(areaName(matrix, extents[i]), own[i], areaLimit(areas, state.row), false, matrix.map)));
    return;
  }
  const order = ranked(weights, matrix.map);
  const limit = limitOf(matrix, state.row);
  $("rank").replaceChildren(...order.map((i) => rankLine(matrix.key[i], weights[i], limit, pointing && i === state.column, matrix.map)));
}

function pointTo(row, column) {
  state.row = row;
  state.column = column;
  if ($("step").options.length > row) $("step").value = row;
  tellFocus();
}

const tipOf = (matrix) => (row, column) =>
  [label(matrix.query[row]), " ← ", label(matrix.key[column]), "  ", el("b", {}, told(matrix.weights[row * matrix.columns + column]))];
const wordsOf = (matrix) => (row, column) => `${matrix.query[row]}, from ${matrix.key[column]}: ${exact(matrix.weights[row * matrix.columns + column])}`;
