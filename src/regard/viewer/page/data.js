// The records of the page, and numbers from them. Packed weights are unpacked on first use.

const page = JSON.parse($("regard-data").textContent);
const records = page.records;
// An image that several records show is in the first of them only.
for (const r of records) {
  for (const items of Object.values(r.items)) if (Array.isArray(items.image)) items.image = records[items.image[0]].items[items.image[1]].image;
}
const unpacked = new WeakMap();
let halves = null;

function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(32768); // of numbers without their sign
  for (let code = 0; code < 32768; code++) {
    const exponent = code >> 10;
    const fraction = code & 1023;
    halves[code] = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function numbersOf(packed) {
  if (unpacked.has(packed)) return unpacked.get(packed);
  let values;
  if (packed.numbers) {
    values = Float64Array.from(packed.numbers);
  } else if (packed.uint8) {
    values = Float32Array.from(bytesOf(packed.uint8), (code) => (code / 255) ** 2 * packed.scale);
  } else {
    const bytes = bytesOf(packed.float16);
    const known = halfTable();
    values = new Float32Array(bytes.length / 2);
    for (let i = 0; i < values.length; i++) {
      const code = bytes[2 * i] | (bytes[2 * i + 1] << 8);
      values[i] = known[code & 32767] * (code > 32767 ? -packed.scale : packed.scale);
    }
  }
  unpacked.set(packed, values);
  return values;
}

const precisionOf = (packed) => (packed.numbers ? "" : packed.uint8 ? "kept in 255 steps" : "kept to 3 digits");
const MEAN = -1;
const means = new WeakMap();

// The weights of one head, or of the mean of all: `size` numbers.
function headOf(packed, heads, head, size) {
  const values = numbersOf(packed);
  if (heads === 1) return values;
  if (head !== MEAN) return values.subarray(head * size, (head + 1) * size);
  if (!means.has(packed)) {
    const mean = new Float64Array(size);
    for (let h = 0; h < heads; h++) for (let i = 0; i < size; i++) mean[i] += values[h * size + i];
    for (let i = 0; i < size; i++) mean[i] /= heads;
    means.set(packed, mean);
  }
  return means.get(packed);
}

const labelsOf = (r, items) => r.items[items].labels;
const isGrid = (r, items) => "rows" in r.items[items];
const headName = (map, head) => (head === MEAN ? "mean" : map.heads[head] || `head ${head + 1}`);

// One matrix: the rows and columns of a map's head, with all that views ask for.
function matrixOf(r, map, head) {
  const [heads, rows, columns] = map.shape;
  const tint = map.signed ? differenceColor : color;
  const matrix = { r, map, head, rows, columns, tint, query: labelsOf(r, map.query), key: labelsOf(r, map.key), weights: headOf(map.weights, heads, head, rows * columns) };
  return merging() ? wordMatrix(matrix) : matrix;
}

function areasOf(matrix) {
  const { areas, shape } = matrix.map;
  const weights = headOf(areas.weights, shape[0], matrix.head, shape[1] * areas.extents.length);
  return { extents: areas.extents, weights: matrix.rowWords ? merged(weights, shape[1], areas.extents.length, matrix.rowWords, null) : weights };
}

const rowOf = (matrix, row) => matrix.weights.subarray(row * matrix.columns, (row + 1) * matrix.columns);

// The mean entropy of the rows in bits: 0 if every row attends to one item, log2 of their number if it attends to all equally.
function entropyOf({ weights, rows, columns }) {
  let total = 0;
  let counted = 0;
  for (let row = 0; row < rows; row++) {
    let sum = 0;
    for (let i = row * columns; i < (row + 1) * columns; i++) sum += Math.max(0, weights[i]);
    if (sum <= 0) continue;
    counted++;
    for (let i = row * columns; i < (row + 1) * columns; i++) if (weights[i] > 0) total -= (weights[i] / sum) * Math.log2(weights[i] / sum);
  }
  return counted ? Math.max(0, total / counted) : 0;
}

const bits = (matrix) => `${entropyOf(matrix).toFixed(2)} bits`;
const sameLabels = (a, b) => a.length === b.length && a.every((text, i) => text === b[i]);
// Cells are the same only on the same image.
const sameItems = (r, name, other, otherName) => sameLabels(labelsOf(r, name), labelsOf(other, otherName)) && r.items[name].image === other.items[otherName].image;
const nameOf = (r, i) => r.title || textOf(r) || `Example ${i + 1}`;
const textOf = (r) => Object.values(r.items).map((items) => items.text || "").find((text) => text) || "";
const opening = (r) => {
  const first = Object.values(r.items).find((items) => items.tokens);
  return first ? first.text || first.labels.join(" ") : "image";
};
