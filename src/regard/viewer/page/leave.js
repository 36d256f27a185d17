// On a live page: a click on a word of the input queries the model without it.

const INPUTS = { translation: ["source"], "two inputs": ["first", "second"], classification: ["text"], entailment: ["premise", "hypothesis"], lm: ["text"] };
const splitter = globalThis.Intl && Intl.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;

// The words of a text in any script, and the text between them.
function partsOf(text) {
  if (splitter) return [...splitter.segment(text)].map(({ segment, index, isWordLike }) => ({ text: segment, start: index, word: isWordLike }));
  return [...text.matchAll(/\S+|\s+/g)].map(({ 0: part, index }) => ({ text: part, start: index, word: /\S/.test(part) }));
}

// Below this probability a word of an output is marked as unsure.
const UNSURE = 0.5;

// The words of an output: where each is in the text, and the probability of the tokens that begin in it.
function writtenWords(name, text) {
  const r = record();
  const scores = r.scores[name];
  const words = partsOf(text).filter((part) => part.word).map((part) => ({ start: part.start, end: part.start + part.text.length, score: null }));
  let [at, place] = [0, 0];
  unmarked(r.items[name]).forEach((token, i) => {
    const found = token.trim() ? text.indexOf(token, at) : -1;
    const start = found < 0 ? at : found; // a part of a character is not found
    at = found < 0 ? at : found + token.length;
    while (place < words.length && words[place].end <= start) place++;
    if (scores && token.trim() && place < words.length && start >= words[place].start) words[place].score = (words[place].score || 0) + scores[i];
  });
  return words.map(({ start, end, score }) => ({ start, end, probability: score === null ? null : Math.exp(score) }));
}

// The output of a model: unsure words are marked, and those that are new after a change; on a live page a click accepts what comes before.
function writtenText(name, text) {
  const r = record();
  const said = r.before === undefined ? null : markNew(text, r.before).map((part) => (typeof part === "string" ? [part, false] : [part.textContent, true]));
  const fresh = new Set();
  let place = 0;
  for (const [part, isNew] of said || []) {
    if (isNew) for (let i = 0; i < part.length; i++) fresh.add(place + i);
    place += part.length;
  }
  const nodes = [];
  let at = 0;
  for (const { start, end, probability } of writtenWords(name, text)) {
    if (start > at) nodes.push(text.slice(at, start));
    const unsure = probability !== null && probability < UNSURE;
    const chance = probability === null ? null : `probability ${probability.toFixed(3)}`;
    const marks = [unsure && "unsure", fresh.has(start) && end > r.typed.prefix.trimEnd().length && "fresh"].filter(Boolean);
    const clicks = forces() ? { type: "button", "data-end": end, title: [chance, "accept up to here"].filter(Boolean).join(" · ") } : { title: chance };
    nodes.push(el(forces() ? "button" : "span", { class: [forces() ? "accept" : "", ...marks].join(" ").trim() || null, ...clicks }, text.slice(start, end)));
    at = end;
  }
  return [...nodes, text.slice(at)];
}

function readText(name, text) {
  if (record().items.target && name === "target") return writtenText(name, text);
  if (!page.live || !(INPUTS[page.task] || []).includes(name)) return [text];
  return partsOf(text).map((part) => (part.word ? el("button", { type: "button", class: "leave", "data-items": name, "data-start": part.start, title: `Leave out “${part.text}”` }, part.text) : part.text));
}

// The typed texts of a record.
function inputsOf(r) {
  const names = INPUTS[page.task] || [];
  const typed = Object.fromEntries(names.map((name, i) => [["text", "second"][i], r.items[name] ? r.items[name].text : ""]));
  const { text, ...forced } = r.typed || {}; // with tags, the record has the text without them
  return { ...typed, ...(forced["keep-tags"] ? { text } : {}), ...Object.fromEntries(Object.entries(forced).filter(([, value]) => value)), model: modelOf(r) };
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

// Tags, as `regard.data.markup` removes them.
const TAG = /<(?:\/?[A-Za-z][\p{L}\p{N}_:.-]*(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*)?\/?|(?:!--|[!?][A-Za-z])[^<>]*)>/gu;

const signsOf = (text) => [...text.replace(/\s/g, "")];

// A text without a word that `count` signs precede, not counting white space and, where there are any, tags; null where another word stands.
function without(text, tags, word, count) {
  const signs = signsOf(word);
  let [before, after, gone, at, seen] = ["", "", "", 0, 0];
  for (const { 0: tag, index } of [...tags, { 0: "", index: text.length }]) {
    for (const sign of text.slice(at, index)) {
      const own = !/\s/.test(sign) && seen >= count && seen < count + signs.length;
      if (own) gone += sign;
      else if (gone) after += sign;
      else before += sign;
      seen += /\s/.test(sign) ? 0 : 1;
    }
    if (gone) after += tag;
    else before += tag;
    at = index + tag.length;
  }
  return gone === signs.join("") ? `${/^[\s.,;:!?]/.test(after) ? before.trimEnd() : before}${after}`.trim() : null;
}

async function leaveOut(button) {
  const r = record();
  const names = INPUTS[page.task];
  const { text } = r.items[button.dataset.items];
  const keeps = (r.typed || {})["keep-tags"];
  const typed = keeps ? r.typed.text : text;
  const left = without(typed, keeps ? typed.matchAll(TAG) : [], button.textContent, signsOf(text.slice(0, Number(button.dataset.start))).length);
  const texts = names.map((name) => (name === button.dataset.items ? left : r.items[name].text));
  const line = el("li", {}, "without ", el("bdi", { class: "left-out" }, button.textContent), ": ");
  if (!$("without").children.length) $("without").append(el("li", { class: "as-it-was" }, "with every word: ", el("bdi", { dir: "auto" }, saidOf(r))));
  $("without").hidden = false;
  $("without").append(line);
  if (left === null) return line.append(el("span", { class: "error" }, "its place among the tags is unclear"));
  if (!enough(texts)) return line.append("nothing is left to read");
  try {
    const [answer] = await answerOf({ ...aboutTexts(texts), ...forcedAsked(r.typed || {}) }, modelOf(r));
    answer.typed = { ...r.typed, text: texts[0] };
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
  const button = event.target.closest(".leave, .accept");
  if (button) (button.matches(".leave") ? leaveOut : accept)(button);
});
