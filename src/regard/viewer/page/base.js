// Building blocks: nodes, text, numbers. Text from records is only ever set as text.

const $ = (id) => document.getElementById(id);
const VECTOR = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const shape = (tag, attributes, ...children) => build(document.createElementNS(VECTOR, tag), attributes, children);

// A token, kept whole and in its own direction; signs that stand for white space are faint.
function label(text, tag = "bdi") {
  const node = el(tag, { class: "token", dir: "auto" });
  for (const part of text.split(/([␣⇥↵]+)/)) {
    if (part) node.append(/^[␣⇥↵]/.test(part) ? el("span", { class: "ws" }, part) : part);
  }
  return node;
}

// What a reader counts as one letter, marks and joined emoji included.
const segmenter = globalThis.Intl && Intl.Segmenter ? new Intl.Segmenter() : null;
const letters = (text) => (segmenter ? [...segmenter.segment(text)].length : [...text].length);
const rightToLeft = (text) => /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(/\p{L}/u.exec(text) || "");

// Six decimals, or three digits of a small number: scores of a method may be small together.
const exact = (weight) => String(Number(Math.abs(weight) >= 0.001 ? weight.toFixed(6) : weight.toPrecision(3)));
const told = (weight) => exact(weight).replaceAll("-", "−");
// A number of a list: weights have three decimals, scores of a method three digits.
const brief = (value, map) => (map && map.method ? exact(Number(value.toPrecision(3))) : value.toFixed(3)).replaceAll("-", "−");
const short = (weight) => (weight === 0 ? "" : Math.abs(weight) < 0.005 ? "·" : weight.toFixed(2).replace(/^(-?)0/, "$1").replace("-", "−"));
const signed = (value) => `${value < 0 ? "−" : "+"}${exact(Math.abs(value))}`;
const within = (value, low, high) => Math.min(Math.max(value, low), high);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// The places of the largest of some numbers, largest first.
function strongest(values, most) {
  const order = Array.from(values.keys());
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, most);
}

// The largest of some numbers, without their signs.
function largest(values) {
  let top = 0;
  for (let i = 0; i < values.length; i++) if (Math.abs(values[i]) > top) top = Math.abs(values[i]);
  return top;
}

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => el("option", { value, dir: "auto" }, text)));
  select.value = chosen;
}

// The longest sequence that two lists of labels share, as pairs of places.
function common(one, other) {
  if (one.length * other.length > 4e6) return [];
  const wide = other.length + 1;
  const lengths = new Uint16Array((one.length + 1) * wide);
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      lengths[i * wide + j] = one[i] === other[j] ? lengths[(i + 1) * wide + j + 1] + 1 : Math.max(lengths[(i + 1) * wide + j], lengths[i * wide + j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < one.length && j < other.length;) {
    if (one[i] === other[j]) pairs.push([i++, j++]);
    else if (lengths[(i + 1) * wide + j] >= lengths[i * wide + j + 1]) i++;
    else j++;
  }
  return pairs;
}

// What a view says where it has nothing to draw.
const empty = (text) => el("p", { class: "empty" }, text);
