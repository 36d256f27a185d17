// On a live page: a click on a word of the input queries the model without it.

const INPUTS = { translation: ["source"], "two inputs": ["first", "second"], classification: ["text"], entailment: ["premise", "hypothesis"], lm: ["text"] };
const splitter = globalThis.Intl && Intl.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;

// The words of a text in any script, and the text between them.
function partsOf(text) {
  if (splitter) return [...splitter.segment(text)].map(({ segment, index, isWordLike }) => ({ text: segment, start: index, word: isWordLike }));
  return [...text.matchAll(/\S+|\s+/g)].map(({ 0: part, index }) => ({ text: part, start: index, word: /\S/.test(part) }));
}

function readText(name, text) {
  if (!page.live || !(INPUTS[page.task] || []).includes(name)) return [text];
  return partsOf(text).map((part) => (part.word ? el("button", { type: "button", class: "leave", "data-items": name, "data-start": part.start, title: `Leave out “${part.text}”` }, part.text) : part.text));
}

// The typed texts of a record.
function inputsOf(r) {
  const names = INPUTS[page.task] || [];
  const typed = Object.fromEntries(names.map((name, i) => [["text", "second"][i], r.items[name] ? r.items[name].text : ""]));
  return { ...typed, model: modelOf(r) };
}

const modelOf = (r) => (page.models.includes(r.model) ? page.models.indexOf(r.model) : Number($("model").value));

const aboutTexts = ([text, second]) => {
  if (page.task === "entailment") return { pair: { premise: text, hypothesis: second } };
  return page.task === "two inputs" ? { text, second } : { text };
};

// The output of a model as text.
function saidOf(r) {
  if (r.prediction) {
    const found = r.prediction.probabilities.find(([name]) => name === r.prediction.label);
    return `${r.prediction.label}${found ? ` ${found[1].toFixed(3)}` : ""}`;
  }
  if (page.task === "lm") return `log-probability ${told(r.scores.text.reduce((sum, score) => sum + score, 0))}`;
  return r.items.target ? r.items.target.text : "";
}

// New words are marked.
function markNew(said, before) {
  const [now, then] = [said, before].map((text) => text.split(/(\s+)/));
  const kept = new Set(common(now, then).map(([place]) => place));
  return now.map((word, place) => (kept.has(place) || !word.trim() ? word : el("b", {}, word)));
}

async function leaveOut(button) {
  const r = record();
  const names = INPUTS[page.task];
  const start = Number(button.dataset.start);
  const { text } = r.items[button.dataset.items];
  const [before, after] = [text.slice(0, start), text.slice(start + button.textContent.length)];
  const left = `${/^[\s.,;:!?]/.test(after) ? before.trimEnd() : before}${after}`.trim();
  const texts = names.map((name) => (name === button.dataset.items ? left : r.items[name].text));
  const line = el("li", {}, "without ", el("bdi", { class: "left-out" }, button.textContent), ": ");
  if (!$("without").children.length) $("without").append(el("li", { class: "as-it-was" }, "with every word: ", el("bdi", { dir: "auto" }, saidOf(r))));
  $("without").hidden = false;
  $("without").append(line);
  if (texts.some((each) => !each.trim())) return line.append("nothing is left to read");
  try {
    const [answer] = await answerOf(aboutTexts(texts), modelOf(r));
    const look = el("button", { type: "button", class: "look" }, "Show");
    look.addEventListener("click", () => {
      if (!records.includes(answer)) records.push(answer);
      showShelf();
      choose(records.indexOf(answer));
    });
    line.append(el("bdi", { dir: "auto" }, ...markNew(saidOf(answer), saidOf(r))), " ", look);
  } catch (error) {
    line.append(el("span", { class: "error" }, error.message));
  }
}

$("texts").addEventListener("click", (event) => {
  const button = event.target.closest(".leave");
  if (button) leaveOut(button);
});
