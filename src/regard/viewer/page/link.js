// A link to the current view: the state of the page in the fragment of its URL.

function linkOf() {
  const values = { example: state.index + 1, view: state.view, map: state.map + 1, head: state.head + 1 };
  const pointed = { row: state.row + 1, column: state.column + 1 };
  const changed = {
    words: state.words && 1, scale: state.scale !== "map" && state.scale, numbers: state.numbers && 1, projected: state.projected && 1, every: state.every && 1,
    threshold: state.view === "flow" && state.threshold, hypothesis: state.hypothesis && state.hypothesis + 1,
    rival: state.view === "compare" && state.other.chosen && [state.other.index, state.other.map, state.other.head].map((at) => at + 1).join("."),
    palette: state.palette !== "viridis" && state.palette, theme: state.theme !== "auto" && state.theme,
  };
  return { values, all: { ...values, ...pointed, ...Object.fromEntries(Object.entries(changed).filter(([, value]) => value)) } };
}

const written = (values) => `#${new URLSearchParams(values)}`;

function setAddress(values) {
  try {
    history.replaceState(null, "", written(values));
  } catch { /* a page within another page has no address of its own */ }
}

// Reloading a live page sends no request.
function remember() {
  if (records.length) setAddress(linkOf().values);
}

// The index that a number of a link stands for, or NaN.
const indexOf = (text) => (Number.isInteger(Number(text)) ? Number(text) - 1 : NaN);

// Restore the state of a link; invalid values are ignored.
function restore(asked) {
  const number = (name) => indexOf(asked.get(name));
  const index = records[number("example")] ? number("example") : shownOf(groups[0]);
  const r = records[index];
  for (const name of ["numbers", "words", "every", "projected"]) if (asked.has(name)) state[name] = asked.get(name) === "1";
  if (["map", "one", "row"].includes(asked.get("scale"))) state.scale = asked.get("scale");
  if (Object.hasOwn(PALETTES, asked.get("palette"))) state.palette = asked.get("palette");
  if (["auto", "light", "dark"].includes(asked.get("theme"))) state.theme = asked.get("theme");
  settleSwitches();
  setColors();
  state.view = viewOf(asked.get("view")) ? asked.get("view") : firstView(r, r.maps[r.main]);
  choose(index, null);
  const map = r.maps[number("map")];
  if (map) {
    chooseMap(r.maps.indexOf(map));
    if (number("head") >= MEAN && number("head") < map.shape[0] && asked.has("head")) state.head = map.shape[0] > 1 ? number("head") : 0;
  }
  startAt(number("row") || 0);
  if (number("column") >= 0 && drawable(currentMap())) state.column = within(number("column"), 0, current().columns - 1);
  state.hypothesis = Math.max(0, number("hypothesis") || 0);
  if (asked.has("threshold")) state.threshold = Number(asked.get("threshold")) || 0;
  const [other, place, head] = (asked.get("rival") || "").split(".").map(indexOf);
  const rival = records[other] && records[other].maps[place];
  if (rival && head >= MEAN && head < rival.shape[0]) state.other = { index: other, map: place, head, chosen: true };
  if (viewOf(asked.get("view"))) keepingCell(() => { state.view = asked.get("view"); });
  show();
}

function settleSwitches() {
  for (const name of ["numbers", "words", "every"]) $(name).checked = state[name];
  for (const name of ["scale", "palette", "theme"]) $(name).value = state[name];
  $(state.projected ? "as-items" : "as-areas").checked = true;
}

// The live page's link holds the input: opening it queries the model again.
async function copyLink() {
  const { all } = linkOf();
  const explained = record().maps.find((map) => map.method);
  const values = page.live ? { ...inputsOf(record()), ...(explained ? { method: explained.method } : {}), ...all, example: 1 } : all;
  setAddress(values);
  const address = location.href;
  try {
    await navigator.clipboard.writeText(address);
  } catch { // without leave, or where the page has no secure address
    const box = el("textarea", { class: "unseen" });
    box.value = address;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  $("said").textContent = "Link copied";
  $("link").textContent = "Copied";
  setTimeout(() => { $("link").textContent = "Link"; }, 1500);
}

$("link").addEventListener("click", copyLink);
