// The attended text, each word on a background as dark as its weight: one text per hop, or for the current step.

const MOST_TEXTS = 10;

VIEWS.push({
  id: "text",
  name: "Text",
  focus: true,
  stepped: true,
  wide: true,
  fits: (r, map) => drawable(map) && !isGrid(r, map.key),
  draw() {
    const matrix = current();
    const all = matrix.map.kind === "hops" || matrix.rows <= MOST_TEXTS;
    const rows = all ? Array.from({ length: matrix.rows }, (_, i) => i) : [state.row];
    const list = el("div", { class: "texts-of", id: "highlights" });
    for (const row of rows) {
      const weights = rowOf(matrix, row);
      const text = el("p", { dir: directionOf(matrix.r, matrix.map.key) }, ...painted(matrix, row));
      [...text.querySelectorAll("bdi")].forEach((node, i) => { node.dataset.weight = exact(weights[i]); node.title = exact(weights[i]); });
      const name = el("button", { type: "button", "data-at": row, "aria-pressed": row === state.row }, label(matrix.query[row]));
      const spread = matrix.map.signed ? "" : bits({ weights, rows: 1, columns: matrix.columns });
      list.append(el("section", {}, el("h3", {}, name, el("span", {}, ` ${spread}`)), text));
    }
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) stepTo(Number(button.dataset.at), "#highlights button[aria-pressed=true]");
    });
    return [list, scaleOf(matrix, limitOf(matrix))];
  },
});
