// Graphs of ONNX operators, run on typed arrays: those operators that an exported model is written in, and no others.
// A tensor is { dims, data }; integers and truth values are numbers in Int32Array and Uint8Array.

const sizeOf = (dims) => dims.reduce((product, size) => product * size, 1);
const tensor = (dims, data) => ({ dims, data });
const like = (data, size) => new data.constructor(size);

// The shape that two tensors have together, an axis of size 1 taking that of the other.
function broadcastDims(a, b) {
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, i) => {
    const one = a[i - rank + a.length] ?? 1;
    const other = b[i - rank + b.length] ?? 1;
    if (one !== other && one !== 1 && other !== 1) throw new Error(`engine: ${a} and ${b} do not go together`);
    return one === 1 ? other : one;
  });
}

// For each axis of `dims` how far the next element of a tensor of `own` axes is; 0 where it is repeated.
function stridesFor(own, dims) {
  const strides = new Array(dims.length).fill(0);
  let step = 1;
  for (let i = own.length - 1; i >= 0; i--) {
    if (own[i] !== 1) strides[i + dims.length - own.length] = step;
    step *= own[i];
  }
  return strides;
}

// Walk all elements of `dims` in order, row by row: `visit` gets the place of a row, where tensors of these strides have its first element,
// its size, and how far the next element of each tensor is.
function walk(dims, strides, visit) {
  const axes = Math.max(0, dims.length - 1);
  const size = dims.length ? dims[axes] : 1;
  const steps = strides.map((each) => (dims.length ? each[axes] : 0));
  const total = sizeOf(dims);
  const at = new Array(axes).fill(0);
  const places = strides.map(() => 0);
  for (let i = 0; i < total; i += size) {
    visit(i, places, size, steps);
    for (let axis = axes - 1; axis >= 0; axis--) {
      at[axis]++;
      for (let s = 0; s < strides.length; s++) places[s] += strides[s][axis];
      if (at[axis] < dims[axis]) break;
      for (let s = 0; s < strides.length; s++) places[s] -= strides[s][axis] * dims[axis];
      at[axis] = 0;
    }
  }
}

// Rows of the first tensor, one behind the other.
function copied(a, dims, strides) {
  const out = like(a.data, sizeOf(dims));
  const from = a.data;
  walk(dims, [strides], (i, [start], size, [step]) => { for (let j = 0; j < size; j++) out[i + j] = from[start + j * step]; });
  return tensor(dims, out);
}

function binary(a, b, make, f) {
  const x = a.data;
  const y = b.data;
  if (b.data.length === 1 && b.dims.length <= a.dims.length) {
    const found = make(x.length);
    const value = y[0];
    for (let i = 0; i < x.length; i++) found[i] = f(x[i], value);
    return tensor(a.dims, found);
  }
  const dims = broadcastDims(a.dims, b.dims);
  const total = sizeOf(dims);
  const found = make(total);
  if (x.length === total && y.length === total) {
    for (let i = 0; i < total; i++) found[i] = f(x[i], y[i]);
  } else if (x.length === total && b.dims.every((size, i) => size === dims[i + dims.length - b.dims.length]) && y.length) {
    for (let start = 0; start < total; start += y.length) for (let j = 0; j < y.length; j++) found[start + j] = f(x[start + j], y[j]); // the last axes
  } else {
    walk(dims, [stridesFor(a.dims, dims), stridesFor(b.dims, dims)], (i, [p, q], size, [s, t]) => { for (let j = 0; j < size; j++) found[i + j] = f(x[p + j * s], y[q + j * t]); });
  }
  return tensor(dims, found);
}

const arithmetic = (f) => ([a, b]) => binary(a, b, (size) => like(a.data, size), f);
const comparison = (f) => ([a, b]) => binary(a, b, (size) => new Uint8Array(size), (x, y) => (f(x, y) ? 1 : 0));
const unary = (f) => ([a]) => {
  const found = like(a.data, a.data.length);
  for (let i = 0; i < found.length; i++) found[i] = f(a.data[i]);
  return tensor(a.dims, found);
};

// Abramowitz and Stegun have 7 digits; this series and continued fraction have all that float32 holds.
function erf(x) {
  const z = Math.abs(x);
  if (z > 6) return Math.sign(x);
  let sum = z;
  let term = z;
  for (let n = 1; n < 200 && Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (-z * z) / n;
    sum += term / (2 * n + 1);
    if (n > 100) break;
  }
  return z < 3 ? Math.sign(x) * (2 / Math.sqrt(Math.PI)) * sum : Math.sign(x) * (1 - erfcTail(z));
}

function erfcTail(z) {
  let fraction = 0;
  for (let k = 60; k > 0; k--) fraction = k / 2 / (z + fraction);
  return Math.exp(-z * z) / (Math.sqrt(Math.PI) * (z + fraction));
}

// Rows (M, K) times a matrix (K, N), added to `out` at a place: four rows at a time, so that a weight is read once for them.
function product(out, at, rows, from, matrix, start, M, K, N) {
  let m = 0;
  for (; m + 4 <= M; m += 4) {
    const r0 = from + m * K;
    const r1 = r0 + K;
    const r2 = r1 + K;
    const r3 = r2 + K;
    const o0 = at + m * N;
    const o1 = o0 + N;
    const o2 = o1 + N;
    const o3 = o2 + N;
    for (let k = 0; k < K; k++) {
      const a = rows[r0 + k];
      const b = rows[r1 + k];
      const c = rows[r2 + k];
      const d = rows[r3 + k];
      const w = start + k * N;
      for (let n = 0; n < N; n++) {
        const value = matrix[w + n];
        out[o0 + n] += a * value;
        out[o1 + n] += b * value;
        out[o2 + n] += c * value;
        out[o3 + n] += d * value;
      }
    }
  }
  for (; m < M; m++) {
    const r = from + m * K;
    const o = at + m * N;
    let k = 0;
    for (; k + 4 <= K; k += 4) {
      const a = rows[r + k];
      const b = rows[r + k + 1];
      const c = rows[r + k + 2];
      const d = rows[r + k + 3];
      const w = start + k * N;
      for (let n = 0; n < N; n++) out[o + n] += a * matrix[w + n] + b * matrix[w + N + n] + c * matrix[w + 2 * N + n] + d * matrix[w + 3 * N + n];
    }
    for (; k < K; k++) {
      const a = rows[r + k];
      const w = start + k * N;
      for (let n = 0; n < N; n++) out[o + n] += a * matrix[w + n];
    }
  }
}

// The same with a matrix that is always there, kept with two columns side by side, one pair of them behind the other: what a step reads lies
// in a row, and sums stay in registers. `down` and `across` are the distances of its rows and columns where it is.
const pairsOf = new WeakMap();

function packed(matrix, K, N, down, across) {
  let found = pairsOf.get(matrix);
  if (!found) {
    found = new Float32Array(K * (N + (N % 2)));
    for (let n = 0; n < N; n++) for (let k = 0, at = (n - (n % 2)) * K + (n % 2); k < K; k++, at += 2) found[at] = matrix[k * down + n * across];
    pairsOf.set(matrix, found);
  }
  return found;
}

const BLOCK = 5; // rows at a time: as many as a beam of the usual width has
let block = new Float64Array(0);

// Rows (M, K) times a packed matrix (K, N). A block that is not full is filled up with zeros: its rows are computed, and cut off.
function fixedProduct(rows, pairs, M, K, N) {
  const out = new Float32Array((M % BLOCK > 1 ? M + BLOCK - (M % BLOCK) : M) * N);
  if (block.length < BLOCK * K) block = new Float64Array(BLOCK * K);
  for (let m = 0; m < M; m += BLOCK) {
    const count = Math.min(BLOCK, M - m);
    const wide = count === 1 ? 1 : BLOCK;
    for (let r = 0; r < wide; r++) for (let k = 0, at = r, from = (m + r) * K; k < K; k++, at += wide) block[at] = r < count ? rows[from + k] : 0;
    if (wide === 1) oneRow(out, m * N, block, pairs, K, N);
    else fiveRows(out, m * N, block, pairs, K, N);
  }
  return out.subarray(0, M * N);
}

function fiveRows(out, at, x, pairs, K, N) {
  for (let n = 0, w = 0; n < N; n += 2) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    let e = 0;
    let a2 = 0;
    let b2 = 0;
    let c2 = 0;
    let d2 = 0;
    let e2 = 0;
    for (let i = 0; i < BLOCK * K; i += BLOCK, w += 2) {
      const first = pairs[w];
      const second = pairs[w + 1];
      const x0 = x[i];
      const x1 = x[i + 1];
      const x2 = x[i + 2];
      const x3 = x[i + 3];
      const x4 = x[i + 4];
      a += x0 * first;
      b += x1 * first;
      c += x2 * first;
      d += x3 * first;
      e += x4 * first;
      a2 += x0 * second;
      b2 += x1 * second;
      c2 += x2 * second;
      d2 += x3 * second;
      e2 += x4 * second;
    }
    const o = at + n;
    out[o] = a;
    out[o + N] = b;
    out[o + 2 * N] = c;
    out[o + 3 * N] = d;
    out[o + 4 * N] = e;
    if (n + 1 === N) return; // an odd number of columns ends with half a pair
    out[o + 1] = a2;
    out[o + N + 1] = b2;
    out[o + 2 * N + 1] = c2;
    out[o + 3 * N + 1] = d2;
    out[o + 4 * N + 1] = e2;
  }
}

// One row with four sums for each column, so that no addition waits for the one before.
function oneRow(out, at, x, pairs, K, N) {
  const whole = K - (K % 4);
  for (let n = 0, w = 0; n < N; n += 2) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    let a2 = 0;
    let b2 = 0;
    let c2 = 0;
    let d2 = 0;
    let k = 0;
    for (; k < whole; k += 4, w += 8) {
      const x0 = x[k];
      const x1 = x[k + 1];
      const x2 = x[k + 2];
      const x3 = x[k + 3];
      a += x0 * pairs[w];
      a2 += x0 * pairs[w + 1];
      b += x1 * pairs[w + 2];
      b2 += x1 * pairs[w + 3];
      c += x2 * pairs[w + 4];
      c2 += x2 * pairs[w + 5];
      d += x3 * pairs[w + 6];
      d2 += x3 * pairs[w + 7];
    }
    for (; k < K; k++, w += 2) {
      a += x[k] * pairs[w];
      a2 += x[k] * pairs[w + 1];
    }
    out[at + n] = a + b + c + d;
    if (n + 1 < N) out[at + n + 1] = a2 + b2 + c2 + d2;
  }
}

function matMul([a, b]) {
  const K = a.dims.at(-1);
  const N = b.dims.at(-1);
  if (b.dims.length === 2) {
    const M = sizeOf(a.dims.slice(0, -1));
    return tensor([...a.dims.slice(0, -1), N], fixedProduct(a.data, packed(b.data, K, N, N, 1), M, K, N));
  }
  const M = a.dims.at(-2);
  const outer = broadcastDims(a.dims.slice(0, -2), b.dims.slice(0, -2));
  const out = new Float32Array(sizeOf(outer) * M * N);
  const strides = [stridesFor(a.dims.slice(0, -2), outer), stridesFor(b.dims.slice(0, -2), outer)];
  walk(outer, strides, (i, [p, q], size, [s, t]) => { for (let j = 0; j < size; j++) product(out, (i + j) * M * N, a.data, (p + j * s) * M * K, b.data, (q + j * t) * K * N, M, K, N); });
  return tensor([...outer, M, N], out);
}

function transpose([a], { perm }) {
  const dims = perm.map((axis) => a.dims[axis]);
  const own = new Array(a.dims.length);
  for (let i = a.dims.length - 1, step = 1; i >= 0; step *= a.dims[i], i--) own[i] = step;
  return copied(a, dims, perm.map((axis) => own[axis]));
}

const axisOf = (axis, rank) => (axis < 0 ? axis + rank : axis);

function slice([a, starts, ends, axes]) {
  const axis = axisOf(axes.data[0], a.dims.length);
  const size = a.dims[axis];
  const bound = (value) => within(value < 0 ? value + size : value, 0, size);
  const first = bound(starts.data[0]);
  const length = Math.max(0, bound(ends.data[0]) - first);
  const dims = a.dims.with(axis, length);
  const inner = sizeOf(a.dims.slice(axis + 1));
  const out = like(a.data, sizeOf(dims));
  for (let i = 0, outer = sizeOf(a.dims.slice(0, axis)); i < outer; i++) {
    const from = (i * size + first) * inner;
    out.set(a.data.subarray(from, from + length * inner), i * length * inner);
  }
  return tensor(dims, out);
}

function concat(parts, { axis }) {
  const place = axisOf(axis, parts[0].dims.length);
  const dims = parts[0].dims.with(place, parts.reduce((total, part) => total + part.dims[place], 0));
  const inner = sizeOf(dims.slice(place + 1));
  const out = like(parts[0].data, sizeOf(dims));
  let at = 0;
  for (const part of parts) {
    const width = part.dims[place] * inner;
    for (let i = 0, outer = sizeOf(dims.slice(0, place)); i < outer; i++) out.set(part.data.subarray(i * width, (i + 1) * width), i * dims[place] * inner + at);
    at += width;
  }
  return tensor(dims, out);
}

function gather([a, index], { axis }) {
  const place = axisOf(axis, a.dims.length);
  const inner = sizeOf(a.dims.slice(place + 1));
  const count = index.data.length;
  const outer = sizeOf(a.dims.slice(0, place));
  const out = like(a.data, outer * count * inner);
  for (let i = 0; i < outer; i++) {
    for (let j = 0; j < count; j++) {
      const from = (i * a.dims[place] + axisOf(index.data[j], a.dims[place])) * inner;
      out.set(a.data.subarray(from, from + inner), (i * count + j) * inner);
    }
  }
  return tensor([...a.dims.slice(0, place), ...index.dims, ...a.dims.slice(place + 1)], out);
}

// An element for each of an index of as many axes, which says its place in one of them.
function gatherElements([a, index], { axis }) {
  const place = axisOf(axis, a.dims.length);
  const own = stridesFor(a.dims, a.dims).with(place, 0);
  const step = sizeOf(a.dims.slice(place + 1));
  const out = like(a.data, index.data.length);
  walk(index.dims, [own], (i, [start], size, [next]) => { for (let j = 0; j < size; j++) out[i + j] = a.data[start + j * next + step * axisOf(index.data[i + j], a.dims[place])]; });
  return tensor(index.dims, out);
}

function pad([a, amounts]) {
  const rank = a.dims.length;
  const dims = a.dims.map((size, i) => size + amounts.data[i] + amounts.data[rank + i]);
  const out = like(a.data, sizeOf(dims));
  const strides = new Array(rank);
  for (let i = rank - 1, step = 1; i >= 0; step *= dims[i], i--) strides[i] = step;
  const start = strides.reduce((sum, stride, i) => sum + stride * amounts.data[i], 0);
  walk(a.dims, [strides], (i, [p], size, [step]) => { for (let j = 0; j < size; j++) out[start + p + j * step] = a.data[i + j]; });
  return tensor(dims, out);
}

// Reduce one axis: `begin` is what it starts from, `last` what becomes of the result.
function reduce(a, axis, keep, begin, step, last = (value) => value) {
  const place = axisOf(axis, a.dims.length);
  const size = a.dims[place];
  const inner = sizeOf(a.dims.slice(place + 1));
  const dims = keep ? a.dims.with(place, 1) : a.dims.toSpliced(place, 1);
  const out = like(a.data, sizeOf(dims));
  for (let i = 0; i < out.length; i++) {
    const from = Math.floor(i / inner) * size * inner + (i % inner);
    let value = begin;
    for (let j = 0; j < size; j++) value = step(value, a.data[from + j * inner]);
    out[i] = last(value, size);
  }
  return tensor(dims, out);
}

function argMax([a], { axis }) {
  const size = a.dims[axis];
  const inner = sizeOf(a.dims.slice(axis + 1));
  const dims = a.dims.toSpliced(axis, 1);
  const out = new Int32Array(sizeOf(dims));
  for (let i = 0; i < out.length; i++) {
    const from = Math.floor(i / inner) * size * inner + (i % inner);
    for (let j = 1; j < size; j++) if (a.data[from + j * inner] > a.data[from + out[i] * inner]) out[i] = j;
  }
  return tensor(dims, out);
}

function softmax([a]) {
  const size = a.dims.at(-1);
  const out = new Float32Array(a.data.length);
  for (let start = 0; start < out.length; start += size) {
    let top = -Infinity;
    for (let i = 0; i < size; i++) top = Math.max(top, a.data[start + i]);
    let sum = 0;
    for (let i = 0; i < size; i++) sum += out[start + i] = Math.exp(a.data[start + i] - top);
    for (let i = 0; i < size; i++) out[start + i] /= sum;
  }
  return tensor(a.dims, out);
}

function layerNormalization([a, scale, bias], { epsilon }) {
  const size = a.dims.at(-1);
  const out = new Float32Array(a.data.length);
  for (let start = 0; start < out.length; start += size) {
    let mean = 0;
    for (let i = 0; i < size; i++) mean += a.data[start + i];
    mean /= size;
    let squares = 0;
    for (let i = 0; i < size; i++) squares += (a.data[start + i] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / size + epsilon);
    for (let i = 0; i < size; i++) out[start + i] = (a.data[start + i] - mean) * factor * scale.data[i] + bias.data[i];
  }
  return tensor(a.dims, out);
}

function where([mask, a, b]) {
  const dims = broadcastDims(mask.dims, broadcastDims(a.dims, b.dims));
  const out = like(a.data, sizeOf(dims));
  const row = (i, [m, x, y], size, [l, s, t]) => { for (let j = 0; j < size; j++) out[i + j] = mask.data[m + j * l] ? a.data[x + j * s] : b.data[y + j * t]; };
  walk(dims, [mask, a, b].map((each) => stridesFor(each.dims, dims)), row);
  return tensor(dims, out);
}

function reshape([a, shape]) {
  const dims = Array.from(shape.data, (size, i) => (size === 0 ? a.dims[i] : size));
  const open = dims.indexOf(-1);
  if (open >= 0) dims[open] = a.data.length / -sizeOf(dims);
  return tensor(dims, a.data);
}

// (B, C, H, W) through a convolution of 3 x 3 with one row of zeros around it: each place's neighbours as a row of a matrix.
function convolution([x, weight, bias], { strides: [stride] }) {
  const [batch, channels, height, width] = x.dims;
  const [N, K] = [weight.dims[0], 9 * channels];
  const [rows, columns] = [height, width].map((size) => Math.floor((size - 1) / stride) + 1);
  const size = rows * columns;
  const out = new Float32Array(batch * N * size);
  for (let b = 0; b < batch; b++) {
    const around = new Float32Array(size * K);
    for (let place = 0, at = 0; place < size; place++) {
      const [top, left] = [Math.floor(place / columns) * stride - 1, (place % columns) * stride - 1];
      for (let c = b * channels; c < (b + 1) * channels; c++) {
        for (let v = top; v < top + 3; v++) for (let u = left; u < left + 3; u++) around[at++] = v >= 0 && v < height && u >= 0 && u < width ? x.data[(c * height + v) * width + u] : 0;
      }
    }
    const found = fixedProduct(around, packed(weight.data, K, N, 1, K), size, K, N);
    for (let n = 0; n < N; n++) for (let place = 0; place < size; place++) out[(b * N + n) * size + place] = found[place * N + n] + bias.data[n];
  }
  return tensor([batch, N, rows, columns], out);
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
// What each cell makes of the sums of a step, of the products with the state and of the state before: gates in ONNX' order.
const CELLS = {
  GRU(x, u, bias, h, _, size, j) {
    const update = sigmoid(x[j] + u[j] + bias[j]);
    const reset = sigmoid(x[size + j] + u[size + j] + bias[size + j]);
    const fresh = Math.tanh(x[2 * size + j] + reset * (u[2 * size + j] + bias[2 * size + j]));
    return [fresh + update * (h[j] - fresh), 0];
  },
  LSTM(x, u, bias, _, c, size, j) {
    const at = (gate) => x[gate * size + j] + u[gate * size + j] + bias[gate * size + j];
    const memory = sigmoid(at(2)) * c[j] + sigmoid(at(0)) * Math.tanh(at(3));
    return [sigmoid(at(1)) * Math.tanh(memory), memory];
  },
  RNN: (x, u, bias, _, __, ___, j) => [Math.tanh(x[j] + u[j] + bias[j]), 0],
};

// (S, B, D) through a recurrent layer: all states (S, 1, B, H), zero behind a text's end, and the last ones (1, B, H).
function recurrent(kind, [input, weight, hidden, bias, lengths], { direction, hidden_size: size }) {
  const [steps, batch, width] = input.dims;
  const gates = weight.dims[1];
  const W = packed(weight.data, width, gates, 1, width);
  const U = packed(hidden.data, size, gates, 1, size);
  const projected = fixedProduct(input.data, W, steps * batch, width, gates);
  for (let i = 0; i < projected.length; i++) projected[i] += bias.data[i % gates];
  const rest = bias.data.subarray(gates);
  const out = new Float32Array(steps * batch * size);
  const last = [new Float32Array(batch * size), new Float32Array(batch * size)];
  for (let b = 0; b < batch; b++) {
    const h = last[0].subarray(b * size, (b + 1) * size);
    const c = last[1].subarray(b * size, (b + 1) * size);
    for (let n = 0; n < lengths.data[b]; n++) {
      const row = (direction === "reverse" ? lengths.data[b] - 1 - n : n) * batch + b;
      const u = fixedProduct(h, U, 1, size, gates);
      const x = projected.subarray(row * gates, (row + 1) * gates);
      const before = h.slice();
      for (let j = 0; j < size; j++) [h[j], c[j]] = CELLS[kind](x, u, rest, before, c, size, j);
      out.set(h, row * size);
    }
  }
  return [tensor([steps, 1, batch, size], out), ...last.map((each) => tensor([1, batch, size], each))];
}

const OPERATORS = {
  Add: arithmetic((x, y) => x + y),
  Sub: arithmetic((x, y) => x - y),
  Mul: arithmetic((x, y) => x * y),
  Div: arithmetic((x, y) => x / y),
  Max: arithmetic((x, y) => (x > y ? x : y)),
  Min: arithmetic((x, y) => (x < y ? x : y)),
  And: arithmetic((x, y) => x & y),
  Less: comparison((x, y) => x < y),
  LessOrEqual: comparison((x, y) => x <= y),
  Greater: comparison((x, y) => x > y),
  Equal: comparison((x, y) => x === y),
  Abs: unary(Math.abs),
  Exp: unary(Math.exp),
  Sqrt: unary(Math.sqrt),
  Tanh: unary(Math.tanh),
  Sigmoid: unary(sigmoid),
  Relu: unary((x) => (x > 0 ? x : 0)),
  Erf: unary(erf),
  Sin: unary(Math.sin),
  Cos: unary(Math.cos),
  Identity: ([a]) => a,
  Cast: ([a], { to }) => tensor(a.dims, (to === "float32" ? Float32Array : to === "bool" ? Uint8Array : Int32Array).from(a.data)),
  Shape: ([a]) => tensor([a.dims.length], Int32Array.from(a.dims)),
  Reshape: reshape,
  Squeeze: ([a, axes]) => tensor(a.dims.filter((_, i) => !axes.data.some((axis) => axisOf(axis, a.dims.length) === i)), a.data),
  Unsqueeze([a, axes]) {
    const dims = [...a.dims];
    for (const axis of [...axes.data].sort((x, y) => x - y)) dims.splice(axis, 0, 1);
    return tensor(dims, a.data);
  },
  ConstantOfShape: ([shape]) => tensor([...shape.data], new Float32Array(sizeOf([...shape.data]))),
  Range: ([first, end]) => tensor([end.data[0] - first.data[0]], Int32Array.from({ length: end.data[0] - first.data[0] }, (_, i) => first.data[0] + i)),
  Expand([a, shape]) {
    const dims = broadcastDims(a.dims, [...shape.data]);
    return copied(a, dims, stridesFor(a.dims, dims));
  },
  ReduceSum: ([a, axes]) => reduce(a, axes.data[0], true, 0, (sum, x) => sum + x),
  ReduceMean: ([a], { axes, keepdims }) => reduce(a, axes[0], keepdims, 0, (sum, x) => sum + x, (sum, size) => sum / size),
  ReduceMax: ([a], { axes, keepdims }) => reduce(a, axes[0], keepdims, -Infinity, (top, x) => (x > top ? x : top)),
  ArgMax: argMax,
  MatMul: matMul,
  Transpose: transpose,
  Slice: slice,
  Concat: concat,
  Gather: gather,
  GatherElements: gatherElements,
  Pad: pad,
  Softmax: softmax,
  LayerNormalization: layerNormalization,
  Where: where,
  Conv: convolution,
  GRU: (inputs, settings) => recurrent("GRU", inputs, settings),
  LSTM: (inputs, settings) => recurrent("LSTM", inputs, settings),
  RNN: (inputs, settings) => recurrent("RNN", inputs, settings),
};

// One graph with the weights it shares with others: give it inputs by name, ask for outputs by name.
class Network {
  constructor({ nodes }, weights) {
    this.weights = weights;
    this.fixed = new Map(); // what depends on weights alone is computed once
    this.plans = new Map();
    this.nodes = [];
    for (const [operator, inputs, outputs, settings] of nodes) {
      if (!OPERATORS[operator]) throw new Error(`engine: unknown operator ${operator}`);
      if (inputs.every((name) => this.constant(name))) this.compute([operator, inputs, outputs, settings], this.fixed, (name) => this.constant(name));
      else this.nodes.push([operator, inputs, outputs, settings]);
    }
  }

  constant(name) {
    return this.fixed.get(name) || this.weights.get(name);
  }

  compute([operator, inputs, outputs, settings], values, read) {
    const found = OPERATORS[operator](inputs.map(read), settings);
    if (Array.isArray(found)) outputs.forEach((name, i) => values.set(name, found[i]));
    else values.set(outputs[0], found);
  }

  // The operators that some outputs need, in order.
  plan(wanted) {
    const key = wanted.join();
    if (!this.plans.has(key)) {
      const needed = new Set(wanted);
      this.plans.set(key, this.nodes.toReversed().filter(([, inputs, outputs]) => outputs.some((name) => needed.has(name)) && inputs.forEach((name) => needed.add(name)) === undefined).reverse());
    }
    return this.plans.get(key);
  }

  run(given, wanted) {
    const values = new Map(Object.entries(given));
    const read = (name) => values.get(name) || this.constant(name);
    for (const node of this.plan(wanted)) this.compute(node, values, read);
    return Object.fromEntries(wanted.map((name) => [name, read(name)]));
  }
}
