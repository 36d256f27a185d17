// Typed input, or an image: one request to the page's server, or to the model inside the page, and the records of the response.

function startLive() {
  $("live").hidden = false;
  const names = page.models.map((name, i) => [i, name]);
  $("title").textContent = page.models.join(", ");
  document.title = `${page.models.join(", ")} · Regard`;
  $("model").parentNode.hidden = names.length < 2;
  $("against").parentNode.hidden = names.length < 2;
  options($("model"), names, 0);
  options($("against"), [["", "no other model"], ...names], "");
  options($("explain"), [["", "attention alone"], ...page.methods.map((name) => [name, name])], "");
  $("explain").parentNode.hidden = !page.methods.length;
  $("live").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("forced").hidden = !forces();
  $("tagged").hidden = page.task !== "translation";
  for (const id of ["text", "second"]) $(id).addEventListener("input", () => { $("prefix").value = ""; }); // that of another text
  for (const id of ["text", "second", "prefix", "terms"]) {
    $(id).addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        ask();
      }
    });
  }
  if (page.task === "entailment") {
    $("second").hidden = false;
    $("text").placeholder = "Premise: what is given";
    $("text-label").textContent = "Premise";
  }
  if (page.task === "two inputs") {
    $("second").hidden = false;
    $("second").placeholder = "Second input of the same sentence";
    document.querySelector('label[for="second"]').textContent = "Second input";
  }
  if (takesImage()) startDrop();
}

// What to type or to choose.
const WANTED = { captioning: "Choose an image", "sentence and image": "Type a text and choose an image", entailment: "Type both texts", "two inputs": "Type both texts" };
const wanted = () => WANTED[page.task] || "Type a text";

const takesImage = () => page.task === "captioning" || page.task === "sentence and image";

// The input image: chosen, or dropped anywhere on the page.
let picture = null;

function startDrop() {
  $("text").hidden = page.task === "captioning";
  $("drop").hidden = false;
  const take = (files, from) => {
    if (!files.length || asking) return;
    setPicture(files[0], from);
    ask();
  };
  $("file").addEventListener("change", () => take($("file").files, "field"));
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault(); // else the browser leaves the page for the image
      $("drop").classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer) take(event.dataTransfer.files, "drop");
    });
  }
}

// The field of the browser names its own file; the page names any other.
function setPicture(file, from) {
  picture = file;
  if (from !== "field") $("file").value = "";
  $("chosen").textContent = from === "field" ? "" : file.name;
}

function base64Of(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => fail(new Error("This file cannot be read."));
    reader.readAsDataURL(file);
  });
}

// The input in the server's format; null without input.
async function asked() {
  if (takesImage()) {
    if (!picture || !($("text").hidden || $("text").value.trim())) return null;
    if (page.largest && picture.size > page.largest) throw new Error(`This image has ${count(picture.size, "byte")}; at most ${count(page.largest, "byte")} can be sent.`);
    const image = await base64Of(picture);
    return page.task === "captioning" ? { image } : { text: $("text").value, second: image };
  }
  const texts = ["text", "second"].slice(0, INPUTS[page.task].length).map((id) => $(id).value);
  return enough(texts) ? aboutTexts(texts) : null;
}

// Whether there is something to ask. Some models of two inputs read one alone; the others say what is missing.
const enough = (texts) => texts[page.task === "two inputs" ? "some" : "every"]((text) => text.trim());

// Examples of the server to start from; an example image is sent like an uploaded one.
function startingPoints() {
  const what = empty(`${wanted()} above to see what the model attends to${page.examples.length ? ", or start from one of these:" : "."}`);
  const list = el("ul", { class: "starts", id: "starts" });
  for (const example of page.examples) {
    const shown = example.image ? el("img", { src: example.image, alt: example.name }) : el("bdi", { dir: "auto" }, example.texts.join(" · "));
    const button = el("button", { type: "button" }, shown);
    button.addEventListener("click", () => start(example));
    list.append(el("li", {}, button));
  }
  return page.examples.length ? [what, list] : [what];
}

function start({ texts, image, name }) {
  if (image) {
    setPicture(new File([bytesOf(image.slice(image.indexOf(",") + 1))], name, { type: image.slice(5, image.indexOf(";")) }), "example");
  } else {
    fill(texts);
    $("prefix").value = "";
  }
  ask();
}

// Only a server forces words: the model inside a page does not.
const forces = () => page.live && !answerAbout && ["translation", "two inputs"].includes(page.task);

// The forced words as typed; a semicolon separates terms.
const FORCED = ["prefix", "terms", "keep-tags"];
const forcedTyped = () => (forces() ? { prefix: $("prefix").value, terms: $("terms").value, "keep-tags": $("keep-tags").checked ? "1" : "" } : {});

function forcedAsked({ prefix = "", terms = "", "keep-tags": tagged = "" }) {
  const pairs = terms.split(";").filter((term) => term.trim()).map((term) => {
    const [source, ...target] = term.split("=");
    if (!source.trim() || !target.join("=").trim()) throw new Error(`Terms: expected a term, = and its translation, found “${term.trim()}”.`);
    return { source: source.trim(), target: target.join("=").trim() };
  });
  return { ...(prefix.trim() ? { prefix } : {}), ...(pairs.length ? { terms: pairs } : {}), ...(tagged ? { keep_tags: true } : {}) };
}

function fillForced(typed) {
  for (const name of ["prefix", "terms"]) $(name).value = typed[name] || "";
  $("keep-tags").checked = Boolean(typed["keep-tags"]);
}

// Ask for the translation of a record again, with its words up to here as they are.
function accept(button) {
  const r = record();
  const { text, second, model } = inputsOf(r);
  fill([text, second || ""]);
  $("model").value = model;
  $("prefix").value = r.items.target.text.slice(0, Number(button.dataset.end));
  ask(saidOf(r));
}

const fill = (texts) => texts.forEach((text, i) => { $(["text", "second"][i]).value = text; });

// Repeat the request of a link; return whether there is one.
function askLinked() {
  const linked = new URLSearchParams(location.hash.slice(1));
  const texts = ["text", "second"].map((name) => linked.get(name) || "");
  if (!page.live || texts.every((text) => !text)) return false;
  fill(texts);
  fillForced(Object.fromEntries(FORCED.map((name) => [name, linked.get(name)])));
  if (page.models[Number(linked.get("model"))]) $("model").value = Number(linked.get("model"));
  if (page.methods.includes(linked.get("method"))) $("explain").value = linked.get("method");
  ask().then(() => { if (records.length) restore(linked); });
  return true;
}

// With an embedded model, set by the last script but one, there is no server.
let answerAbout = null;

async function answerOf(about, model) {
  if (answerAbout) return answerAbout(about);
  let response;
  try {
    response = await fetch("attention", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...about, model, ...($("explain").value ? { method: $("explain").value } : {}) }) });
  } catch {
    throw new Error("The server does not answer.");
  }
  const values = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(`${response.status}: ${typeof values.error === "string" ? values.error : response.statusText || "the server refused"}`);
  if (!Array.isArray(values.records) || !values.records.length) throw new Error("The response holds no attention to show.");
  return values.records;
}

let asking = false;

async function ask(before) {
  if (asking) return;
  const models = [...new Set([$("model").value, $("against").value].filter((value) => value !== "").map(Number))];
  asking = true;
  $("ask").disabled = true;
  $("live-error").textContent = "";
  $("live").setAttribute("aria-busy", "true");
  try {
    const about = await asked();
    if (!about) throw new Error(`${wanted()}.`);
    const typed = forcedTyped();
    const answers = [];
    for (const model of models) answers.push(...(await answerOf({ ...about, ...forcedAsked(typed) }, model)));
    for (const answer of answers) Object.assign(answer, { typed: { ...typed, text: $("text").value }, before });
    // The first response opens in its natural view, an image as an image; later ones in the last chosen view.
    if (!records.length) state.view = firstView(answers[0], answers[0].maps[answers[0].main]);
    const kept = $("explain").value || (records.length ? keptMap() : null);
    records.unshift(...answers);
    state.other.chosen = false;
    $("search").value = "";
    showShelf();
    open();
    choose(0, kept);
  } catch (error) {
    $("live-error").textContent = error.message;
  } finally {
    asking = false;
    $("ask").disabled = false;
    $("live").setAttribute("aria-busy", "false");
  }
}
