// Choosing an example, drawing the current view, controls and keys.

const MOST_PROBABLE = 6;

const headChoices = (map) => [...(map.shape[0] > 1 ? [[MEAN, `mean of ${map.shape[0]}`]] : []), ...Array.from({ length: map.shape[0] }, (_, i) => [i, headName(map, i)])];

// The texts of an example beside its attention.
function tellExample() {
  const { index } = state;
  const r = record();
  for (const button of $("examples").querySelectorAll("button")) button.setAttribute("aria-current", groupOf[Number(button.dataset.index)] === groupOf[index]);
  $("title").textContent = nameOf(r, index);
  document.title = `${nameOf(r, index)} · Regard`;
  const { "with tags": tagged, ...meta } = r.meta;
  const facts = [...(r.model ? [["model", r.model]] : []), ...Object.entries(meta)];
  $("meta").replaceChildren(...facts.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", { dir: "auto" }, value))));
  const texts = Object.entries(r.items).filter(([, items]) => items.text);
  $("texts").replaceChildren(...texts.flatMap(([name, items]) => [el("dt", {}, capital(name)), el("dd", { dir: "auto", title: items.text }, ...readText(name, items.text))]), ...(tagged ? [el("dt", {}, "With tags"), el("dd", { dir: "auto" }, tagged)] : []));
  $("without").replaceChildren();
  $("without").hidden = true;
  tellPrediction(r);
}

// The name of the chosen map, if it is not the main one; initially none.
const methodName = (method) => method || "attention weights";
const methodsOf = (r) => [...new Set(r.maps.map((map) => map.method))];
const keptMap = () => (currentMap() && record().main !== state.map ? currentMap().name : null);

function choose(index, kept = keptMap()) {
  const { head } = state;
  stop();
  state.index = index;
  const r = record();
  tellExample();
  state.hypothesis = 0;
  state.other.chosen = false;
  // Keep the chosen map if the other example has one of its name.
  const same = r.maps.findIndex((map) => map.name === kept);
  chooseMap(same < 0 ? r.main : same);
  if (same >= 0 && head < currentMap().shape[0]) state.head = currentMap().shape[0] > 1 ? head : 0;
  startAt(0);
  adapt();
  if (currentMap()) state.threshold = Math.min(0.1, (largest(current().weights) || 1) / 4);
  show();
}

// An example at its last update: what was learned.
const shownOf = (group) => group[group.length - 1];

function chooseGroup(place) {
  const group = groups[within(place, 0, groups.length - 1)];
  if (!group.includes(state.index)) choose(shownOf(group));
}

function tellPrediction(r) {
  $("prediction").hidden = !r.prediction;
  if (!r.prediction) return;
  const { label: chosen, probabilities } = r.prediction;
  const order = strongest(probabilities.map(([, value]) => value), MOST_PROBABLE);
  const lines = order.map((i) => rankLine(probabilities[i][0], probabilities[i][1], 1, probabilities[i][0] === chosen));
  $("prediction").replaceChildren(el("h2", {}, "Predicted"), el("p", { class: "word" }, el("bdi", {}, chosen)), el("ol", { class: "rank" }, ...lines));
}

function chooseMap(place) {
  state.map = place;
  const map = currentMap();
  state.head = map && map.shape[0] > 1 ? MEAN : 0;
  startAt(0);
}

// Select a row, and in it the item with the largest weight.
function startAt(row) {
  const map = currentMap();
  state.row = drawable(map) ? within(row, 0, current().rows - 1) : 0;
  state.column = drawable(map) ? strongest(rowOf(current(), state.row), 1)[0] : 0;
}

function tabs(views) {
  $("tabs").replaceChildren(...views.map((view) => {
    const chosen = view.id === state.view;
    return el("button", { role: "tab", type: "button", id: `tab-${view.id}`, "aria-controls": "view", "data-view": view.id, "aria-selected": chosen, tabindex: chosen ? 0 : -1 }, view.name);
  }));
}

function show() {
  if (!records.length) return;
  const r = record();
  const map = currentMap();
  hideTip();
  const views = fitting();
  const fits = (id) => views.some((view) => view.id === id && view.fits(r, map));
  if (!fits(state.view)) keepingCell(() => { state.view = [firstView(r, map), "matrix", ...views.map((view) => view.id)].find(fits) || "matrix"; });
  // The beam's matrix of a longer hypothesis, or of other items, may have been selected further on.
  if (drawable(map) && (state.row >= current().rows || state.column >= current().columns)) startAt(state.row);
  tabs(views.length ? views : [viewOf("matrix"), viewOf("table")]);
  settleControls(r, map);
  settleHistory();
  $("view").setAttribute("aria-labelledby", `tab-${state.view}`);
  remember();
  const view = viewOf(state.view);
  $("view").classList.toggle("wide", Boolean(view.wide));
  $("view").parentNode.classList.toggle("stacked", Boolean(view.stacked));
  $("focus").hidden = !views.length || !view.focus;
  if (!views.length) {
    const side = map && map.shape[1] ? map.key : map && map.query;
    $("view").replaceChildren(empty(map ? `This example has no ${side} tokens, so there is nothing to draw.` : "This example holds no attention."));
    return;
  }
  $("view").replaceChildren(...view.draw());
  if (view.drawn) view.drawn();
  if (view.focus) tellFocus();
}

// Only the controls that do something here are shown.
function settleControls(r, map) {
  const can = drawable(map);
  const view = viewOf(state.view);
  for (const node of document.querySelectorAll("[data-for]")) node.hidden = !can || !node.dataset.for.split(" ").includes(state.view);
  const methods = methodsOf(r);
  $("method").parentNode.hidden = methods.length < 2 || state.view === "beam";
  options($("method"), methods.map((method) => [method, methodName(method)]), map ? map.method : "");
  const maps = r.maps.map((other, i) => [i, other.name]).filter(([i]) => r.maps[i].method === map.method);
  $("map").parentNode.hidden = maps.length < 2 || state.view === "beam";
  options($("map"), maps, state.map);
  $("head").parentNode.hidden = !can || map.shape[0] < 2 || ["heads", "beam"].includes(state.view);
  if (can) options($("head"), headChoices(map), state.head);
  $("stepping").hidden = !can || !view.stepped || map.shape[1] < 2;
  if (can) options($("step"), current().query.map((token, i) => [i, token]), state.row);
  $("words").parentNode.hidden = !can || WITH_TOKENS.includes(state.view) || !hasWords(r, map);
  $("choice").hidden = !can || !map.areas || !["areas", "image"].includes(state.view);
  $("few").hidden = $("choice").hidden || state.projected;
  $("few-value").textContent = state.areas;
  $("numbers").disabled = can && map.shape[1] * map.shape[2] > MOST_CELLS;
  if (can && state.view === "compare") settleRival();
}

function stepTo(row, selector) {
  const { rows, weights, columns } = current();
  state.row = within(row, 0, rows - 1);
  state.column = strongest(weights.subarray(state.row * columns, (state.row + 1) * columns), 1)[0];
  show();
  const again = selector && $("view").querySelector(selector);
  if (again) again.focus();
}

// Choose a map that the current view can draw.
function adapt() {
  const view = viewOf(state.view);
  if (!view || view.here || view.fits(record(), currentMap())) return;
  const place = mapFor(view);
  if (place >= 0) chooseMap(place);
}

function changeView(id, focus) {
  keepingCell(() => { state.view = id; });
  adapt();
  show();
  if (focus) $(`tab-${state.view}`).focus();
}

$("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) changeView(tab.dataset.view, true);
});
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const all = [...$("tabs").children];
  changeView(all[(all.indexOf(event.target) + step + all.length) % all.length].dataset.view, true);
  event.preventDefault();
  event.stopPropagation();
});

$("map").addEventListener("change", () => {
  const { head, row } = state;
  chooseMap(Number($("map").value));
  if (currentMap().shape[0] > head) state.head = currentMap().shape[0] > 1 ? head : 0;
  startAt(row);
  show();
});
// The map of a method between the same items, else its first.
$("method").addEventListener("change", () => {
  const { row } = state;
  const { maps, main } = record();
  const { query, key } = currentMap();
  const own = maps.map((_, i) => i).filter((i) => maps[i].method === $("method").value);
  const same = own.filter((i) => maps[i].query === query && maps[i].key === key);
  chooseMap(own.includes(main) ? main : [...same, ...own][0]);
  startAt(row);
  show();
});
$("head").addEventListener("change", () => { state.head = Number($("head").value); show(); });
$("step").addEventListener("change", () => stepTo(Number($("step").value)));
$("back").addEventListener("click", () => stepTo(state.row - 1));
$("next").addEventListener("click", () => stepTo(state.row + 1));
for (const name of ["numbers", "every"]) $(name).addEventListener("change", () => { state[name] = $(name).checked; show(); });
$("scale").addEventListener("change", () => { state.scale = $("scale").value; show(); });
for (const input of document.querySelectorAll("input[name=shown]")) input.addEventListener("change", () => { state.projected = $("as-items").checked; show(); });
$("areas").addEventListener("input", () => { state.areas = Number($("areas").value); show(); });
$("palette").addEventListener("change", () => { state.palette = $("palette").value; setColors(); show(); });
$("theme").addEventListener("change", () => { state.theme = $("theme").value; setColors(); show(); });
media.addEventListener("change", () => { setColors(); show(); });
$("help").addEventListener("click", () => $("keys").showModal());
$("close").addEventListener("click", () => $("keys").close());

// Paper is light.
let onScreen = null;

function printIn(theme) {
  if (!records.length || Boolean(theme) === Boolean(onScreen)) return;
  [state.theme, onScreen] = theme ? [theme, state.theme] : [onScreen, null];
  setColors();
  show();
}

addEventListener("beforeprint", () => { printIn("light"); });
addEventListener("afterprint", () => { printIn(null); });

function turn(select, by) {
  if (select.parentNode.hidden || !select.options.length) return;
  select.selectedIndex = (select.selectedIndex + by + select.options.length) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

const KEYS = {
  "/": () => $("search").focus(),
  "?": () => $("keys").showModal(),
  "]": () => chooseGroup(groupOf[state.index] + 1),
  "[": () => chooseGroup(groupOf[state.index] - 1),
  u: () => stepUpdate(1),
  U: () => stepUpdate(-1),
  p: () => { if (!$("history").hidden) togglePlay(); },
  h: () => turn($("head"), 1),
  H: () => turn($("head"), -1),
  e: () => turn($("method"), 1),
  E: () => turn($("method"), -1),
  m: () => turn($("map"), 1),
  M: () => turn($("map"), -1),
  ".": () => { if (!$("stepping").hidden) stepTo(state.row + 1); },
  ",": () => { if (!$("stepping").hidden) stepTo(state.row - 1); },
  a: () => { if (!$("choice").hidden) $(state.projected ? "as-areas" : "as-items").click(); },
  c: () => turn($("palette"), 1),
  d: () => turn($("theme"), 1),
};

// Where a letter key types a letter.
const TYPED = "textarea, select, dialog, input:not([type=checkbox], [type=radio], [type=range])";

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  if (event.target.closest(TYPED) || event.ctrlKey || event.metaKey || event.altKey || !records.length) return;
  const place = Number(event.key);
  const views = fitting();
  const act = KEYS[event.key] || (place >= 1 && place <= views.length ? () => changeView(views[place - 1].id, true) : null);
  if (!act) return;
  event.preventDefault();
  act();
});

// Hidden without a record.
function open() {
  for (const id of ["bar", "options"]) $(id).hidden = !records.length;
  $("title").hidden = !records.length && !page.live; // a live page begins with the names of its models
  $("link").hidden = location.protocol === "about:" || (page.live && takesImage()); // no address, or none that holds the image
}

function begin() {
  options($("palette"), Object.entries(PALETTES).map(([id, { name }]) => [id, name]), state.palette);
  setColors();
  if (page.live) startLive();
  showShelf();
  open();
  if (!records.length) {
    $("view").replaceChildren(...(page.live ? startingPoints() : [empty("This page holds no examples.")]));
    askLinked();
    return;
  }
  restore(new URLSearchParams(location.hash.slice(1)));
}

addEventListener("hashchange", () => {
  if (!askLinked() && records.length) restore(new URLSearchParams(location.hash.slice(1)));
});
begin();
