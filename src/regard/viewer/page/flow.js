// Two columns of words, and lines between them by weight.

const MOST_LINKS = 800;

VIEWS.push({
  id: "flow",
  name: "Flow",
  focus: true,
  fits: (r, map) => drawable(map) && !isGrid(r, map.key) && Math.max(map.shape[1], map.shape[2]) <= MOST_IN_FLOW,
  draw() {
    const matrix = current();
    const longest = Math.max(matrix.rows, matrix.columns);
    const height = longest * (longest > 60 ? 24 : 32);
    const side = (which, labels, name) => {
      const list = el("ol", { class: which, "aria-label": `${name} items` });
      list.style.height = `${height}px`;
      labels.forEach((token, i) => list.append(el("li", {}, el("button", { type: "button", "data-side": which, "data-at": i }, label(token)))));
      return list;
    };
    const lines = shape("svg", { id: "links", viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    lines.style.height = `${height}px`;
    const titles = [el("h3", { class: "source" }, matrix.map.key), el("h3", { class: "target" }, matrix.map.query)];
    const flow = el("div", { class: "flow", id: "flow" }, ...titles, side("source", matrix.key, matrix.map.key), lines, side("target", matrix.query, matrix.map.query));
    const light = (event) => {
      const button = event.target.closest("button");
      if (button) lightLinks(button.dataset.side, Number(button.dataset.at));
    };
    flow.addEventListener("pointerover", light);
    flow.addEventListener("focusin", light);
    flow.addEventListener("pointerleave", () => lightLinks(null, 0));
    flow.addEventListener("keydown", (event) => walkFlow(event, flow));
    const top = largest(matrix.weights);
    $("threshold").max = Math.max(0.01, top).toFixed(2);
    $("threshold").value = state.threshold;
    return [el("div", { class: "scroll" }, flow), el("div", { class: "scale", id: "shown" })];
  },
  drawn: drawLinks,
});

function drawLinks() {
  const matrix = current();
  const lines = $("links");
  const height = parseFloat(lines.style.height);
  state.threshold = Number($("threshold").value);
  $("threshold-value").textContent = state.threshold.toFixed(2);
  const links = [];
  matrix.weights.forEach((weight, i) => { if (weight > 0 && weight >= state.threshold) links.push([weight, Math.floor(i / matrix.columns), i % matrix.columns]); });
  links.sort((a, b) => a[0] - b[0]);
  const shown = links.slice(-MOST_LINKS);
  const limit = limitOf(matrix);
  lines.replaceChildren(...shown.map(([weight, t, s]) => {
    const from = ((s + 0.5) * height) / matrix.columns;
    const to = ((t + 0.5) * height) / matrix.rows;
    return shape("path", {
      d: `M1 ${from}C45 ${from} 55 ${to} 99 ${to}`, "vector-effect": "non-scaling-stroke", "data-source": s, "data-target": t,
      "stroke-width": (0.75 + (6 * weight) / limit).toFixed(2), "stroke-opacity": (0.12 + (0.78 * weight) / limit).toFixed(3),
    });
  }));
  $("shown").textContent = `${shown.length} of ${matrix.weights.length} links shown${shown.length < links.length ? " (the strongest)" : ""}`;
}

function lightLinks(side, at) {
  const touched = { source: new Set(), target: new Set() };
  for (const path of $("links").children) {
    const lit = side !== null && Number(path.dataset[side]) === at;
    path.classList.toggle("lit", lit);
    path.classList.toggle("quiet", side !== null && !lit);
    if (lit) for (const which of ["source", "target"]) touched[which].add(Number(path.dataset[which]));
  }
  if (side !== null) touched[side].add(at);
  for (const button of $("flow").querySelectorAll("button")) {
    const lit = touched[button.dataset.side].has(Number(button.dataset.at));
    button.classList.toggle("lit", lit);
    button.classList.toggle("quiet", side !== null && !lit);
  }
  if (side === "target") pointTo(at, state.column);
}

function walkFlow(event, flow) {
  const button = event.target.closest("button");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const across = { ArrowLeft: "source", ArrowRight: "target" }[event.key];
  if (!button || !(step || across)) return;
  event.preventDefault();
  event.stopPropagation();
  const side = across || button.dataset.side;
  const all = flow.querySelectorAll(`button[data-side=${side}]`);
  all[within(Number(button.dataset.at) + (step || 0), 0, all.length - 1)].focus();
}

$("threshold").addEventListener("input", drawLinks);
