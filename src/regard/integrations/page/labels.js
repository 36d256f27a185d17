// A model that labels a text, or a premise and a hypothesis: one graph, and a record as `regard view` has it.

// Lower case that keeps the number of characters, as `regard.data.lowercase_text`.
function lowercased(text) {
  const lower = text.toLowerCase();
  if ([...lower].length === [...text].length) return lower;
  return Array.from(text, (letter) => ([...letter.toLowerCase()].length === 1 ? letter.toLowerCase() : letter)).join("");
}

// The ids of a text, and what is shown of them: whole words as they were typed.
function readTokens(text) {
  const vocabulary = networks().vocabularies.text;
  const { ids, pieces } = vocabulary.encode(model.lowercase ? lowercased(text) : text);
  const shown = vocabulary.kind === "word" ? vocabulary.encode(text).pieces : pieces;
  if (!ids.length || !stripped(text)) throw new Error("Type a text.");
  return { text, ids: ids.slice(0, model.max_source_length), tokens: shown.slice(0, model.max_source_length) };
}

function softmaxOf(logits) {
  const top = topOf(logits, 0, logits.length);
  const parts = Array.from(logits, (logit) => Math.exp(logit - top));
  const sum = parts.reduce((total, part) => total + part, 0);
  return parts.map((part) => part / sum);
}

// Weights (1, H, T, S) of texts of one length as those of the queries and keys that there are; hops (1, R, S) as one head.
function labelMap(map, { dims, data }, queries, keys) {
  const [heads, rows, columns] = [dims.length > 3 ? dims[1] : 1, dims.at(-2), dims.at(-1)];
  const weights = new Float32Array(heads * queries * keys);
  for (let h = 0; h < heads; h++) {
    for (let t = 0; t < queries; t++) {
      const from = (h * rows + t) * columns;
      weights.set(data.subarray(from, from + keys), (h * queries + t) * keys);
    }
  }
  const { name, kind, query, key, layer } = map;
  return { name, kind, query, key, layer, heads: [], method: "", shape: [heads, queries, keys], weights: numbers(weights), signed: false, areas: null };
}

function labelRecord(texts) {
  const read = texts.map(readTokens);
  const first = (i) => (texts.length > 1 ? `${model.texts[i]}.` : "");
  const given = Object.fromEntries(read.flatMap(({ ids }, i) => [[`${first(i)}tokens`, integers([1, ids.length], ids)], [`${first(i)}lengths`, integers([1], [ids.length])]]));
  const found = networks().model.run(given, ["logits", ...model.maps.map((map) => map.items)]);
  const items = Object.fromEntries(read.map(({ tokens, text }, i) => [model.texts[i], itemsOf(tokens, text)]));
  if (model.hops.length) items.hops = namesOf(model.hops);
  const sizeOfItems = (name) => items[name].tokens.length;
  const maps = model.maps.map((map) => labelMap(map, found[map.items], sizeOfItems(map.query), sizeOfItems(map.key)));
  const probabilities = softmaxOf(found.logits.data);
  const label = model.labels[bestOf(probabilities, 1)[0]];
  return {
    title: "", model: model.name, meta: {}, point: null, items, maps, main: model.main, scores: {}, alternatives: {}, hypotheses: [],
    prediction: { label, probabilities: probabilities.map((probability, i) => [model.labels[i], probability]) },
  };
}
