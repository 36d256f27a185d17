// The model inside this page: what is typed goes through its graphs, and becomes a record as a server would send it.

const model = JSON.parse($("regard-model").textContent);

function readWeights() {
  const bytes = bytesOf($("regard-weights").textContent);
  const known = halfTable();
  const found = new Map();
  for (const [name, kind, dims, offset] of model.weights) {
    const size = sizeOf(dims);
    const view = new DataView(bytes.buffer, bytes.byteOffset + offset);
    const data = kind === "int32" ? new Int32Array(size) : new Float32Array(size);
    for (let i = 0; i < size; i++) {
      if (kind === "int32") data[i] = view.getInt32(4 * i, true);
      else if (kind === "float32") data[i] = view.getFloat32(4 * i, true);
      else {
        const code = view.getUint16(2 * i, true);
        data[i] = known[code & 32767] * (code > 32767 ? -1 : 1);
      }
    }
    found.set(name, tensor(dims, data));
  }
  return found;
}

// Made when it is first asked: a page opens at once.
let ready = null;

function networks() {
  if (!ready) {
    const weights = readWeights();
    ready = { vocabularies: {} };
    for (const [name, graph] of Object.entries(model.graphs)) ready[name] = new Network(graph, weights);
    for (const [side, vocabulary] of Object.entries(model.vocabularies)) ready.vocabularies[side] = new PageVocabulary(model.entries[vocabulary]);
    ready.vocabularies.target ??= ready.vocabularies.text; // of captions
  }
  return ready;
}

const integers = (dims, values) => tensor(dims, Int32Array.from(values));
const END_PIECE = "</s>";
const nextOf = (state) => `next.${state.slice("state.".length)}`;

const textInputs = (ids) => ({ tokens: integers([1, ids.length], ids), lengths: integers([1], [ids.length]) });

// What the encoder computes of an input, its attention too: once, though the search and the record both start from it.
const encodings = new WeakMap();

function encodingOf(inputs) {
  if (!encodings.has(inputs)) {
    const maps = model.maps.filter((map) => map.graph === "encoder");
    encodings.set(inputs, networks().encoder.run(inputs, [...model.sources, ...model.states, ...maps.flatMap(outputsOf)]));
  }
  return encodings.get(inputs);
}

// Steps from an encoded input: the states of hypotheses are those of `beams` of the step before.
class Decoding {
  constructor(inputs, maps) {
    this.maps = model.maps.filter((map) => maps && map.graph === "step");
    const found = encodingOf(inputs);
    this.sources = Object.fromEntries(model.sources.map((name) => [name, found[name]]));
    this.states = Object.fromEntries(model.states.map((name) => [name, found[name]]));
    this.encoded = found;
    this.position = 0;
  }

  step(tokens, beams) {
    const order = integers([beams.length], beams);
    const states = Object.fromEntries(Object.entries(this.states).map(([name, state]) => [name, gather([state, order], { axis: 1 })]));
    const given = { tokens: integers([1, tokens.length], tokens), position: integers([], [this.position]), ...this.sources, ...states };
    const weighed = model.attends ? ["weights"] : [];
    const found = networks().step.run(given, ["logits", ...weighed, ...model.states.map(nextOf), ...this.maps.flatMap(outputsOf)]);
    this.states = Object.fromEntries(model.states.map((name) => [name, found[nextOf(name)]]));
    this.position++;
    return found;
  }
}

const outputsOf = (map) => (map.areas ? [map.items, map.areas] : [map.items]);

// A text as the inputs of the encoder, and its pieces.
function textSource(text) {
  const encoded = networks().vocabularies.source.encode(text);
  const ids = encoded.ids.slice(0, model.max_source_length);
  if (!ids.length || !stripped(text)) throw new Error("Type a text.");
  return { inputs: textInputs([...ids, model.special.end]), pieces: encoded.pieces.slice(0, ids.length), replaceable: ids.map(() => true) };
}

// The tokens that the shortlist of the run has for texts; null without one, where all may be generated.
function allowedFor(texts) {
  if (!model.shortlist) return null;
  const ids = texts.flatMap((text) => networks().vocabularies.source.encode(text).ids.slice(0, model.max_source_length));
  return new Set([...model.shortlist.always, ...ids.flatMap((id) => model.shortlist.tokens[id] || [])]);
}

function translate(text, allowed = allowedFor([text])) {
  return translated({ ...textSource(text), allowed });
}

function translated(read) {
  const hypotheses = search(read.inputs, Math.min(model.decoding.max_length, 2 * read.pieces.length + 30), read.allowed);
  return { ...read, hypotheses: hypotheses.map((found) => ({ ...found, text: textOfTokens(found, read) })) };
}

function search(inputs, maxLength, allowed = null) {
  const decoding = new Decoding(inputs);
  const size = networks().vocabularies.target.tokens.length;
  const step = (tokens, beams) => {
    const { logits, weights } = decoding.step(tokens, beams);
    const kept = allowed ? logits.data.map((logit, i) => (allowed.has(i % size) ? logit : -Infinity)) : logits.data;
    return { logits: kept, weights: weights && weights.data, columns: weights && weights.dims[2] };
  };
  const { begin, end, pad } = model.special;
  return beamSearch(step, { begin, end, banned: [pad, begin], maxLength, size, settings: model.decoding });
}

// An unknown token becomes the source token with the largest weight that can replace it.
function textOfTokens({ tokens, rows }, { pieces, replaceable }) {
  const { target } = networks().vocabularies;
  const ids = tokens.filter((token) => token !== model.special.end);
  if (!model.decoding.replace_unknown || !ids.includes(UNKNOWN)) return target.decode(ids);
  const replacing = (row) => pieces[strongest(replaceable.map((may, i) => (may ? row[i] : -1)), 1)[0]];
  const words = ids.map((id, i) => (id === UNKNOWN ? replacing(rows[i]) : target.pieces[id]));
  return words.join(" ").replace(LINE_BREAKS, " ");
}

// What a record shows ------------------------------------------------------------------------------------------------------

const SPACE_SIGNS = [" ", WORD_SPACE];
const CONTROL = /\p{Cc}/u;

function shownSign(sign) {
  const code = sign.codePointAt(0);
  if (/\p{Zs}/u.test(sign)) return "␣";
  if (sign === "\t") return "⇥";
  if (/[\n\r\x85\p{Zl}\p{Zp}]/u.test(sign)) return "↵";
  if (CONTROL.test(sign)) return code < 32 ? String.fromCharCode(0x2400 + code) : code === 127 ? "␡" : "\ufffd";
  return /[\p{Cf}\p{Cs}\p{Cn}]/u.test(sign) && !"\u200c\u200d".includes(sign) ? "\ufffd" : sign;
}

// A token as one line of printable text, as `regard.viewer.text.visible` writes it.
function visible(token) {
  const found = Array.from(token, shownSign).join("") || "∅";
  return /^[\p{M}\u200c\u200d]/u.test(found) ? `◌${found}` : found;
}

const bare = (token) => token.replace(/^[ ▁]+/, "");
const apart = (token) => /^[\p{Po}\p{Ps}\p{Pe}\p{Pi}\p{Pf}]+$/u.test(bare(token)) && !/['’]/.test(token);
const special = (token) => /^(?:<[^<>\s]*>|\[[A-Z]+\])$/.test(token);
const beginsWord = (token) => SPACE_SIGNS.some((sign) => token.startsWith(sign));

// The words that tokens are parts of, (first token, label); nothing where each is a word of its own.
function wordsOf(tokens) {
  const alone = tokens.map((token) => apart(token) || special(token));
  const starts = [...tokens.keys()].filter((i) => i === 0 || beginsWord(tokens[i]) || alone[i] || alone[i - 1]);
  if (starts.length === tokens.length) return [];
  return starts.map((start, i) => [start, visible(tokens.slice(start, starts[i + 1]).map(bare).join("") || tokens[start])]);
}

// Tokens of the run, which mark words as `regard.viewer.items.kind_marks` says.
function itemsOf(tokens, text) {
  const marks = networks().vocabularies.target.kind === "word" ? "none" : "space";
  const words = marks === "space" ? wordsOf(tokens) : [];
  return { tokens, text, marks, labels: tokens.map(visible), ...(words.length ? { words } : {}) };
}

const namesOf = (names) => ({ tokens: names, text: "", labels: names });

const numbers = (values) => ({ numbers: values });

// The areas of a map that lie in its items: [start, length] each, of a grid [top, left, height, width], and where each stands among the
// graph's own.
function areaSpans(map, size) {
  if (map.grid) return gridSpans(map);
  const spans = [];
  for (let length = 1; length <= Math.min(map.max_area, size); length++) for (let start = 0; start + length <= size; start++) spans.push([start, length]);
  return { spans, places: spans.map(([start, length]) => (length - 1) * size + start) };
}

function gridSpans({ grid: [rows, columns], max_area: [tallest, widest] }) {
  const spans = [];
  const [most, wide] = [Math.min(tallest, rows), Math.min(widest, columns)];
  for (let h = 1; h <= most; h++) for (let w = 1; w <= wide; w++) for (let y = 0; y + h <= rows; y++) for (let x = 0; x + w <= columns; x++) spans.push([y, x, h, w]);
  return { spans, places: spans.map(([y, x, h, w]) => (((h - 1) * wide + w - 1) * rows + y) * columns + x) };
}

// Rows of weights of each head, (H, columns) for each of the queries, as one map (H, T, S); a row that is shorter ends with zeros.
function assembled(map, rows, areas, columns) {
  const heads = rows[0].length;
  const spans = map.areas ? areaSpans(map, columns) : null;
  const put = (source, width, pick) => {
    const found = new Float32Array(heads * rows.length * width);
    source.forEach((row, t) => row.forEach((values, h) => pick(values, t, (place, value) => { found[(h * rows.length + t) * width + place] = value; })));
    return found;
  };
  const weights = put(rows, columns, (values, _, set) => values.forEach((value, i) => set(i, value)));
  const { name, kind, query, key, layer } = map;
  const shape = [heads, rows.length, columns];
  const shared = { name, kind, query, key, layer, heads: [], method: "", shape, weights: numbers(weights), signed: false, areas: null };
  if (!spans) return shared;
  const place = new Map(spans.spans.map((span, i) => [span.join(), i]));
  const found = put(areas, spans.spans.length, (values, t, set) => {
    const own = areaSpans(map, rows[t][0].length);
    own.spans.forEach((span, i) => set(place.get(span.join()), values[own.places[i]]));
  });
  return { ...shared, areas: { extents: spans.spans, weights: numbers(found) } };
}

// The rows of one query, or of all, of a result (1, [K,] H, T, S) as lists of heads.
function headRows({ dims, data }, headAxis) {
  const [heads, queries, columns] = [headAxis ? dims.at(headAxis) : 1, dims.at(-2), dims.at(-1)];
  return Array.from({ length: queries }, (_, t) => Array.from({ length: heads }, (__, h) => data.subarray((h * queries + t) * columns, (h * queries + t + 1) * columns)));
}

// The most probable tokens, and their probabilities.
function alternativesOf(logProbs) {
  const { target } = networks().vocabularies;
  return bestOf(logProbs, model.alternatives).map((id) => [id === model.special.end ? END_PIECE : visible(target.pieces[id]), Math.exp(logProbs[id])]);
}

// Every attention while a hypothesis is produced, and the most probable tokens in place of each: `sizes` says how many items each key has.
function produced(inputs, sizes, tokens) {
  const decoding = new Decoding(inputs, true);
  const collected = decoding.maps.map(() => ({ rows: [], areas: [] }));
  const alternatives = [];
  const { target } = networks().vocabularies;
  for (let t = 0; t < tokens.length; t++) {
    const found = decoding.step([t ? tokens[t - 1] : model.special.begin], [0]);
    const logProbs = logProbabilities(found.logits.data, 0, target.tokens.length, []);
    alternatives.push(alternativesOf(logProbs));
    decoding.maps.forEach((map, i) => {
      collected[i].rows.push(...headRows(found[map.items], map.single ? 0 : -3));
      if (map.areas) collected[i].areas.push(...headRows(found[map.areas], map.single ? 0 : -3));
    });
  }
  const steps = decoding.maps.map((map, i) => [map, assembled(map, collected[i].rows, collected[i].areas, map.key === "written" ? tokens.length : sizes[map.key])]);
  const before = model.maps.filter((map) => map.graph === "encoder").map((map) => {
    const [rows, areas] = outputsOf(map).map((name) => headRows(decoding.encoded[name], -3));
    return [map, assembled(map, rows, areas, sizes[map.key])];
  });
  const order = new Map(model.maps.map((map, i) => [map, i]));
  return { maps: [...before, ...steps].sort(([a], [b]) => order.get(a) - order.get(b)).map(([, map]) => map), alternatives };
}

const countOf = ({ tokens, rows, columns }) => (tokens ? tokens.length : rows * columns);

// The record of what a search found: `items` are those of the input, of which the alignment is to `key`; `query` is the name of the output.
function searchRecord({ inputs, hypotheses, items, query, key, kind }) {
  const [best] = hypotheses;
  const { target } = networks().vocabularies;
  const piecesOf = ({ tokens }) => tokens.map((token) => (token === model.special.end ? END_PIECE : target.pieces[token]));
  const written = piecesOf(best);
  const flat = (rows) => numbers(rows.flatMap((row) => [...row]));
  const sizes = Object.fromEntries(Object.entries(items).map(([name, item]) => [name, countOf(item)]));
  const size = sizes[key];
  const found = produced(inputs, sizes, best.tokens);
  const first = { name: kind, kind, query, key, layer: null, heads: [], method: "", shape: [1, best.tokens.length, size], weights: flat(best.rows), signed: false, areas: null };
  // Of an image the attention of the output itself comes with its areas.
  const own = found.maps.find(({ name }) => name === kind);
  const maps = [{ ...first, areas: own ? own.areas : null }, ...found.maps.filter((map) => map !== own)];
  const all = { ...items, [query]: itemsOf(written, best.text) };
  if (maps.some((map) => map.key === "written")) all.written = itemsOf(["<s>", ...written].slice(0, written.length), "");
  const others = hypotheses.length > 1 ? hypotheses : [];
  return {
    title: "", model: model.name, meta: {}, point: null, items: all, maps, main: 0,
    scores: { [query]: best.logProbs },
    alternatives: { [query]: found.alternatives },
    hypotheses: others.map((each) => ({ labels: piecesOf(each).map(visible), score: each.score, text: each.text, key, logProbs: each.logProbs, weights: flat(each.rows) })),
    prediction: null,
  };
}

// Of a line that is too long a record for each part: a map shows one attention.
function translationRecords(line) {
  const parts = partsOf(wholeCharacters(line), model.max_source_length);
  const allowed = allowedFor(parts); // together, as in one batch of the command
  const records = parts.map((part) => translationRecord(part, allowed));
  const whole = records.map((record) => record.items.target.text).join(" ");
  const titled = (record, i) => ({ ...record, title: `Part ${i + 1} of ${records.length}`, meta: { "whole translation": whole } });
  return records.length > 1 ? records.map(titled) : records;
}

function translationRecord(text, allowed) {
  const { inputs, pieces, hypotheses } = translate(text, allowed);
  const items = { source: itemsOf([...pieces, END_PIECE], text) };
  return searchRecord({ inputs, hypotheses, items, query: "target", key: "source", kind: "alignment" });
}

// A line that a language model reads: each token's log-probability, and what of the tokens before it its window attended to.
function lineRecord(text) {
  const { target } = networks().vocabularies;
  const { end } = model.special;
  const goals = [...target.encode(text).ids, end].slice(0, model.longest);
  const pieces = goals.map((id) => (id === end ? END_PIECE : target.pieces[id]));
  const decoding = new Decoding({ batch: integers([1], [1]) });
  const weights = new Float32Array(goals.length ** 2);
  const [scores, alternatives] = [[], []];
  goals.forEach((goal, t) => {
    const found = decoding.step([t ? goals[t - 1] : model.special.begin], [0]);
    const logProbs = logProbabilities(found.logits.data, 0, target.tokens.length, []);
    scores.push(logProbs[goal]);
    alternatives.push(alternativesOf(logProbs));
    const first = t - found.weights.dims[2]; // of the window; before the line nothing was read
    found.weights.data.forEach((weight, i) => { if (first + i >= 0) weights[t * goals.length + first + i] = weight; });
  });
  const map = { name: "window", kind: "self", query: "text", key: "read", layer: null, heads: [], method: "", shape: [1, goals.length, goals.length], weights: numbers(weights), signed: false, areas: null };
  const items = { text: itemsOf(pieces, text), read: itemsOf(["<s>", ...pieces].slice(0, goals.length), "") };
  return { title: "", model: model.name, meta: {}, point: null, items, maps: [map], main: 0, scores: { text: scores }, alternatives: { text: alternatives }, hypotheses: [], prediction: null };
}

// What the page is asked, see `render_page`: records, of an image when it is read.
function answer({ text, second, pair, image }) {
  if (model.task === "captioning") return pixelsOfFile(image).then((pixels) => [captionRecord(pixels)]);
  if (model.second && model.image) return pixelsOfFile(second).then((pixels) => [pictureRecord(text, pixels)]);
  if (model.second) return [pairRecord(text, second)];
  if (model.task === "translation") return translationRecords(text);
  return [model.task === "lm" ? lineRecord(text) : labelRecord(pair ? [pair.premise, pair.hypothesis] : [text])];
}
