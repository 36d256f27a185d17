// The hypotheses of a search as a tree of what they share, and the attention of the chosen one.

const GAP_Y = 34;
const GAP_X = 20;

// A tree of tokens: { token, at, children, ends: places of hypotheses that end here, through: those that pass, depth }.
function treeOf(hypotheses) {
  const root = { token: null, depth: 0, children: [], ends: [], through: [] };
  hypotheses.forEach((found, place) => {
    let node = root;
    root.through.push(place);
    found.labels.forEach((token, at) => {
      let next = node.children.find((child) => child.token === token);
      if (!next) node.children.push(next = { token, depth: at + 1, children: [], ends: [], through: [], logProb: found.logProbs ? found.logProbs[at] : null });
      next.through.push(place);
      node = next;
    });
    node.ends.push(place);
  });
  return root;
}

function placed(root) {
  let leaves = 0;
  const nodes = [];
  const visit = (node) => {
    // A hypothesis that ends where others continue has its own line.
    const rows = node.children.map(visit);
    for (let i = 0; i < node.ends.length; i++) rows.push(leaves++);
    node.row = rows.reduce((sum, row) => sum + row, 0) / rows.length;
    nodes.push(node);
    return node.row;
  };
  visit(root);
  return { nodes, leaves };
}

VIEWS.push({
  id: "beam",
  name: "Beam",
  focus: false,
  wide: true,
  fits: (r) => r.hypotheses.length > 0,
  draw() {
    const r = record();
    state.hypothesis = Math.min(state.hypothesis, r.hypotheses.length - 1);
    const root = treeOf(r.hypotheses);
    const { nodes, leaves } = placed(root);
    const tree = el("div", { class: "tree", id: "tree", role: "group", "aria-label": `${count(r.hypotheses.length, "hypothesis").replace("hypothesiss", "hypotheses")}, as a tree of what they share` });
    for (const node of nodes) {
      if (!node.depth) continue;
      const chance = node.logProb === null ? "" : `, probability ${Math.exp(node.logProb).toFixed(3)}`;
      const shared = node.through.length > 1 ? `, in ${node.through.length} hypotheses` : "";
      const button = el("button", { type: "button", class: "node", "data-depth": node.depth, "data-through": node.through.join(" "), "aria-label": `${node.token}${chance}${shared}`, title: `${node.token}${chance}` }, label(node.token));
      node.button = button;
      tree.append(button);
    }
    this.laid = { root, nodes, leaves, tree };
    tree.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) chooseHypothesis(Number(button.dataset.place ?? button.dataset.through.split(" ")[0]), Number(button.dataset.depth) - 1);
    });
    tree.addEventListener("keydown", (event) => walkTree(event, root, nodes));
    return [el("div", { class: "scroll" }, tree), el("div", { id: "beam-below" })];
  },
  drawn() {
    layTree(this.laid);
    showHypothesis(0);
  },
});

// Columns are as wide as their widest token; lines go from each token to those that follow it.
function layTree({ root, nodes, leaves, tree }) {
  const { hypotheses } = record();
  const widths = [];
  for (const node of nodes) if (node.depth) widths[node.depth - 1] = Math.max(widths[node.depth - 1] || 0, node.button.offsetWidth);
  const left = [0];
  widths.forEach((width, i) => left.push(left[i] + width + GAP_X));
  const lines = shape("svg", { "aria-hidden": "true" });
  const middle = (node) => node.row * GAP_Y + GAP_Y / 2;
  let widest = 0;
  for (const node of nodes) {
    if (node.depth) {
      node.button.style.left = `${left[node.depth - 1]}px`;
      node.button.style.top = `${middle(node)}px`;
    }
    const from = node.depth ? left[node.depth - 1] + node.button.offsetWidth : 0;
    for (const child of node.children) {
      if (!node.depth) continue;
      const to = left[child.depth - 1];
      const half = (from + to) / 2;
      lines.append(shape("path", { d: `M${from} ${middle(node)}C${half} ${middle(node)} ${half} ${middle(child)} ${to} ${middle(child)}`, "data-through": child.through.join(" "), "stroke-width": (1 + Math.min(3, child.through.length / 2)).toFixed(1) }));
    }
    node.ends.forEach((place, i) => {
      const score = el("button", { type: "button", class: "score", "data-place": place, "data-depth": node.depth, "data-through": place }, `#${place + 1}  ${hypotheses[place].score.toFixed(3).replace("-", "−")}`);
      const y = node.children.length ? Math.max(...node.children.map((child) => child.row)) + i + 1 : node.row + i - (node.ends.length - 1) / 2;
      score.style.left = `${from + 10}px`;
      score.style.top = `${y * GAP_Y + GAP_Y / 2}px`;
      tree.append(score);
      widest = Math.max(widest, from + 20 + score.offsetWidth);
    });
  }
  tree.style.width = `${widest}px`;
  tree.style.height = `${leaves * GAP_Y + 8}px`;
  lines.setAttribute("width", widest);
  lines.setAttribute("height", leaves * GAP_Y + 8);
  tree.prepend(lines);
}

function chooseHypothesis(place, at) {
  state.hypothesis = place;
  showHypothesis(Math.max(0, at));
}

function showHypothesis(at) {
  const r = record();
  const found = r.hypotheses[state.hypothesis];
  for (const node of $("tree").querySelectorAll("[data-through]")) {
    const own = node.dataset.through.split(" ").includes(String(state.hypothesis));
    node.classList.toggle("own", own);
    if (node.matches("button")) node.setAttribute("aria-pressed", own && Number(node.dataset.depth) === at + 1);
  }
  const title = el("h3", {}, `Hypothesis ${state.hypothesis + 1} of ${r.hypotheses.length}, score ${found.score.toFixed(4).replace("-", "−")}`);
  const text = el("p", { class: "said-text", dir: "auto", id: "hypothesis" }, found.text || found.labels.join(" "));
  if (!found.weights || !found.labels.length) {
    $("focus").hidden = true;
    $("beam-below").replaceChildren(title, text);
    return;
  }
  const key = labelsOf(r, found.key);
  const map = { name: "beam", query: "hypothesis", key: found.key, areas: null };
  showBeamMatrix({ r, map, head: 0, rows: found.labels.length, columns: key.length, query: found.labels, key, weights: numbersOf(found.weights), scores: found.logProbs, tint: color }, title, text, at);
}

function showBeamMatrix(matrix, title, text, at) {
  if (isGrid(matrix.r, matrix.map.key)) return showBeamImage(matrix, title, text, at);
  const limit = limitOf(matrix);
  const tell = (row, column) => {
    state.row = row;
    state.column = column;
    tellFocus(matrix);
  };
  const grid = gridOf({
    ...matrix, id: "beam-matrix", limit, numbers: state.numbers, room: $("view").parentNode.clientWidth - 430,
    aria: "Attention weights of the chosen hypothesis", corner: [matrix.map.key, "hypothesis"],
    color: (weight) => color(weight / limit), tip: tipOf(matrix), words: wordsOf(matrix), pointed: tell,
  });
  $("focus").hidden = false;
  $("beam-below").replaceChildren(title, text, grid.node, legend(0, limit));
  const row = within(at, 0, matrix.rows - 1);
  tell(row, strongest(rowOf(matrix, row), 1)[0]);
  grid.point(row, state.column, false);
}

// Over an image: the attention of the chosen token.
function showBeamImage(matrix, title, text, at) {
  state.row = within(at, 0, matrix.rows - 1);
  state.column = strongest(rowOf(matrix, state.row), 1)[0];
  $("focus").hidden = false;
  $("beam-below").replaceChildren(title, text, el("div", { class: "picture" }, overlay(matrix, state.row, 420)), keyOf(matrix));
  tellFocus(matrix);
}

function walkTree(event, root, nodes) {
  const node = nodes.find((found) => found.button === event.target.closest("button"));
  if (!node) return;
  const parent = nodes.find((found) => found.children.includes(node));
  const level = nodes.filter((found) => found.depth === node.depth).sort((a, b) => a.row - b.row);
  const at = level.indexOf(node);
  const next = { ArrowRight: node.children[0], ArrowLeft: parent, ArrowUp: level[at - 1], ArrowDown: level[at + 1] }[event.key];
  if (!next || !next.button) return;
  event.preventDefault();
  event.stopPropagation();
  next.button.focus();
}
