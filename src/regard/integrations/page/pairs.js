// A model of two inputs, two texts or a sentence and an image, and records of its translations as `regard view` has them.

const CELL = "\u25a6"; // the piece of a cell of an image
const PICTURE_NAMES = { first: "source", second: "image" };

// Both inputs in one row, the end of the first in between: what the encoder reads, and the pieces. `cells` stand for an image.
function pairSource(texts, inputs, cells) {
  const { source, second } = networks().vocabularies;
  const { end } = model.special;
  const encoded = (vocabulary, text) => {
    const { ids, pieces } = stripped(text) ? vocabulary.encode(text) : { ids: [], pieces: [] };
    return { ids: ids.slice(0, model.max_source_length), pieces: pieces.slice(0, model.max_source_length) };
  };
  const one = encoded(source, texts[0]);
  const two = cells ? { pieces: new Array(cells).fill(CELL) } : encoded(second, texts[1]);
  if (!one.pieces.length && !two.pieces.length) throw new Error("Type a text.");
  const missing = [one, two].findIndex(({ pieces }) => !pieces.length);
  if (missing >= 0 && !model.second.optional) throw new Error(`The ${["first", "second"][missing]} input is missing: this model reads two.`);
  const more = two.ids && textInputs([...two.ids, end]);
  return {
    inputs: { ...textInputs([...one.ids, end]), ...(more ? { "second.tokens": more.tokens, "second.lengths": more.lengths } : inputs) },
    pieces: [...one.pieces, END_PIECE, ...two.pieces],
    replaceable: [...one.pieces.map(() => true), false, ...two.pieces.map(() => !cells)],
    size: one.pieces.length + 1,
  };
}

const withoutTabs = (text) => text.replaceAll("\t", " ");

function translatePair(first, second) {
  return translated(pairSource([first, second].map(withoutTabs)));
}

function pairRecord(...given) {
  const texts = given.map(withoutTabs);
  return recordOfTwo(translatePair(...texts), texts);
}

// The row as a whole is the source of the alignment; each input has items of its own.
function recordOfTwo({ inputs, pieces, hypotheses, size }, texts) {
  const whole = [...pieces, END_PIECE];
  const own = { first: itemsOf(whole.slice(0, size), texts[0]), second: itemsOf(whole.slice(size), texts[1]) };
  const items = { source: itemsOf(whole, texts.join("\t")), ...own, inputs: namesOf(["first", "second"]) };
  const record = searchRecord({ inputs, hypotheses, items, query: "target", key: "source", kind: "alignment" });
  if (model.second.divides) record.maps.push(divisionOf(record.maps[0], size));
  if (!record.maps.some((map) => map.key === "inputs")) delete record.items.inputs;
  return record;
}

// How an attention to both inputs divides itself between them.
function divisionOf(map, size) {
  const [heads, rows, columns] = map.shape;
  const parts = new Float32Array(2 * heads * rows);
  map.weights.numbers.forEach((weight, i) => { parts[2 * Math.floor(i / columns) + (i % columns < size ? 0 : 1)] += weight; });
  return { ...map, name: "division between inputs", kind: "cross", key: "inputs", layer: null, shape: [heads, rows, 2], weights: numbers(parts), areas: null };
}

function translatePicture(text, pixels) {
  const image = fitted(pixels, model.image);
  const { cells } = model.second;
  const inputs = { "second.images": normalized(image, model.image), "second.lengths": integers([1], [cells + 1]) };
  return { ...translated(pairSource([withoutTabs(text)], inputs, cells)), image };
}

// As `_with_picture` of `regard.tasks.record_layers`: the source is the sentence alone, and the cells lie over the image.
function pictureRecord(text, pixels) {
  const { image, ...found } = translatePicture(text, pixels);
  const record = recordOfTwo(found, [withoutTabs(text), ""]);
  const { cells, grid } = model.second;
  const { size } = found;
  const { first, second, source, inputs, ...others } = record.items;
  const items = { ...others, source: first, ...(inputs ? { inputs: namesOf(["sentence", "image"]) } : {}), image: gridItems(image, grid) };
  const maps = record.maps.filter((map) => map.query !== "source").flatMap((map) => {
    const query = PICTURE_NAMES[map.query] || map.query;
    const own = PICTURE_NAMES[map.key] || map.key;
    const keys = map.key === "source" ? [["source", 0], ["image", size]] : [[own, 0]];
    return keys.map(([key, start]) => {
      const stop = key === "image" ? start + cells : key === "source" ? size : map.shape[2];
      const name = keys.length > 1 && key === "image" ? `${map.name}, image` : map.name.replace("second input", "image");
      return { ...partOf(map, query === "image" ? cells : map.shape[1], start, stop), name, kind: query === "target" && key === "image" ? "image" : map.kind, query, key };
    });
  });
  const hypotheses = record.hypotheses.map((each) => ({ ...each, weights: numbers(columnsOf(each.weights.numbers, found.pieces.length + 1, 0, size)) }));
  return { ...record, items, maps, hypotheses };
}

// Some columns of rows of weights.
function columnsOf(values, columns, start, stop) {
  const found = new Float32Array((values.length / columns) * (stop - start));
  for (let i = 0, at = 0; i < values.length; i += columns) for (let j = start; j < stop; j++) found[at++] = values[i + j];
  return found;
}

// The first queries and some keys of a map; areas lie in all keys.
function partOf(map, queries, start, stop) {
  const [heads, rows, columns] = map.shape;
  const first = (values, width) => {
    const found = new Float32Array(heads * queries * width);
    for (let h = 0; h < heads; h++) found.set(values.subarray(h * rows * width, (h * rows + queries) * width), h * queries * width);
    return numbers(found);
  };
  const weights = first(columnsOf(map.weights.numbers, columns, start, stop), stop - start);
  const areas = map.areas && { ...map.areas, weights: first(map.areas.weights.numbers, map.areas.extents.length) };
  return { ...map, shape: [heads, queries, stop - start], weights, areas };
}
