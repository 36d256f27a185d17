// The text alternative: the keys with the largest weights of every query, in words and numbers.

const MOST_ROWS = 500;

VIEWS.push({
  id: "table",
  name: "Table",
  focus: false,
  wide: true,
  fits: (r, map) => drawable(map),
  draw() {
    const matrix = current();
    const { r, map } = matrix;
    const scores = r.scores[map.query];
    const others = r.alternatives[map.query];
    const names = [`${capital(map.query)}`, ...(scores ? ["Probability"] : []), ...(others ? ["Most probable"] : []), `${map.method ? "Highest scores" : "Largest weights"} in ${map.key}`, ...(map.areas ? ["Areas"] : []), "Entropy"];
    const head = el("tr", {}, ...names.map((name) => el("th", { scope: "col", class: /Prob|Entropy/.test(name) ? "number" : null }, name)));
    const body = el("tbody");
    const rows = Math.min(matrix.rows, MOST_ROWS);
    for (let row = 0; row < rows; row++) {
      const weights = rowOf(matrix, row);
      const score = scores ? [el("td", { class: "number" }, probabilityOf(matrix, row).toFixed(3))] : [];
      const other = others ? [el("td", {}, ...alternativesOf(matrix, row).pairs.slice(0, 4).flatMap(([token, value]) => pair(token, value)))] : [];
      const areas = map.areas ? [el("td", {}, ...areaPairs(matrix, row))] : [];
      const spread = el("td", { class: "number" }, bits({ weights, rows: 1, columns: matrix.columns }));
      body.append(el("tr", {}, el("th", { scope: "row" }, label(matrix.query[row])), ...score, ...other, el("td", {}, ...pairs(weights, (i) => matrix.key[i], map)), ...areas, spread));
    }
    const cut = rows < matrix.rows ? `, the first ${rows} rows` : "";
    const caption = el("caption", {}, `${map.name}: ${count(matrix.rows, "item")} of ${map.query} over ${matrix.columns} of ${map.key}, the strongest weights of each${cut}`);
    return [el("div", { class: "scroll" }, el("table", { class: "table", id: "table" }, caption, el("thead", {}, head), body))];
  },
});

// Weights from 0.01, scores of a method from a hundredth of the highest of the row.
function pairs(weights, name, map) {
  const order = strongest(weights, 4);
  const least = map.method ? Math.max(Number.MIN_VALUE, weights[order[0]] / 100) : 0.01;
  return order.filter((i, rank) => rank === 0 || weights[i] >= least).flatMap((i) => pair(name(i), weights[i], map));
}

const pair = (name, value, map = null) => [el("span", { class: "pair-of" }, label(name), " ", el("em", {}, brief(value, map))), " "];

function areaPairs(matrix, row) {
  const { extents, weights } = areasOf(matrix);
  return pairs(weights.subarray(row * extents.length, (row + 1) * extents.length), (i) => areaName(matrix, extents[i]), matrix.map);
}
