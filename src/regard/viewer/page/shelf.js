// The list of examples and its search.

const MOST_LISTED = 500;
let haystacks = [];

function readHaystacks() {
  haystacks = records.map((r, i) => {
    const items = Object.values(r.items).flatMap((items) => (items.tokens ? [items.text, items.tokens.join(" ")] : []));
    const said = r.hypotheses.map((found) => found.text);
    return [nameOf(r, i), r.model, ...items, ...said, r.prediction ? r.prediction.label : "", ...Object.values(r.meta)].join("\n").toLowerCase();
  });
}

function listExamples() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = groups.map(shownOf).filter((i) => words.every((word) => haystacks[i].includes(word)));
  const several = new Set(records.map((r) => r.model)).size > 1;
  const items = hits.slice(0, MOST_LISTED).map((i) => {
    const r = records[i];
    const title = el("bdi", { dir: "auto" }, nameOf(r, i));
    const below = r.title ? [el("span", {}, el("bdi", { dir: "auto" }, opening(r)))] : [];
    const model = several && r.model ? [el("span", { class: "of" }, el("bdi", { dir: "auto" }, r.model))] : [];
    const button = el("button", { type: "button", "data-index": i, "aria-current": groupOf[i] === groupOf[state.index] }, el("b", {}, title), ...below, ...model);
    return el("li", {}, button);
  });
  $("examples").replaceChildren(...items);
  const more = hits.length > MOST_LISTED ? `, the first ${MOST_LISTED} listed` : "";
  $("found").textContent = words.length ? `${hits.length} of ${groups.length} found${more}` : `${count(groups.length, "example")}${more}`;
}

// One record needs no list; a page that asks a model may get more.
function showShelf() {
  readGroups();
  const many = groups.length > 1;
  document.body.classList.toggle("many", many);
  $("shelf").hidden = !many;
  $("brand").classList.toggle("alone", !many);
  (many ? $("shelf") : $("main")).prepend($("brand"));
  readHaystacks();
  listExamples();
}

$("search").addEventListener("input", listExamples);
$("examples").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) choose(Number(button.dataset.index));
});
$("shelf").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const stops = [$("search"), ...$("examples").querySelectorAll("button")];
  const next = stops[stops.indexOf(document.activeElement) + step];
  if (next) next.focus();
  event.preventDefault();
});
