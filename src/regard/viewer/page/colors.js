// Colours. Every ramp goes one way in lightness, so that weights can be told apart without seeing hue, and in print.

const PALETTES = {
  viridis: {
    name: "Viridis",
    light: ["#eff1ec", "#cbe4c6", "#84c9ab", "#3f9d96", "#31688e", "#3b2560"],
    dark: ["#22272e", "#3a3768", "#35608d", "#22958b", "#5fc863", "#fde725"],
  },
  cividis: {
    name: "Cividis",
    light: ["#f4f1e4", "#e3d596", "#b7a973", "#828079", "#4c596e", "#00204d"],
    dark: ["#22272e", "#2b4470", "#5b6270", "#8d8878", "#c6b66a", "#ffea46"],
  },
  gray: {
    name: "Grey",
    light: ["#f2f1ef", "#d0cfcc", "#a5a4a1", "#777674", "#474645", "#141414"],
    dark: ["#22272e", "#44494f", "#6c7075", "#979a9d", "#c7c8c9", "#fbfaf8"],
  },
};
// From more in the second to more in the first; both arms differ in lightness from the middle.
const DIFFERENCE = {
  light: ["#8a3d06", "#d57f24", "#f6cf9a", "#f1f0ee", "#c9c6e4", "#8478b8", "#43246f"],
  dark: ["#f7b368", "#b9701f", "#5f3f1d", "#22272e", "#433c66", "#7d70b5", "#cdc4f2"],
};
const STEPS = 512;
const media = matchMedia("(prefers-color-scheme: dark)");
let ramp = null;
let arms = null;

const isDark = () => (state.theme === "auto" ? media.matches : state.theme === "dark");

function table(stops) {
  const channel = (stop, i) => parseInt(stops[stop].slice(1 + 2 * i, 3 + 2 * i), 16);
  const values = new Uint8Array(STEPS * 3);
  for (let step = 0; step < STEPS; step++) {
    const at = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    for (let i = 0; i < 3; i++) values[3 * step + i] = Math.round(channel(low, i) + (channel(low + 1, i) - channel(low, i)) * (at - low));
  }
  return values;
}

function setColors() {
  const side = isDark() ? "dark" : "light";
  ramp = table(PALETTES[state.palette][side]);
  arms = table(DIFFERENCE[side]);
  document.documentElement.dataset.theme = side;
}

function pick(values, part) {
  const at = 3 * Math.round(within(part, 0, 1) * (STEPS - 1));
  const rgb = [values[at], values[at + 1], values[at + 2]];
  const bright = (rgb[0] * 299 + rgb[1] * 587 + rgb[2] * 114) / 1000 > 140;
  return { ground: `rgb(${rgb})`, ink: bright ? "#1b1f24" : "#ffffff" };
}

const color = (part) => pick(ramp, part);
const differenceColor = (part) => pick(arms, (part + 1) / 2);

function paint(node, { ground, ink }) {
  node.style.backgroundColor = ground;
  node.style.color = ink;
}

// Fills pixels (one a cell) from weights: the fast way for canvases.
function pixels(values, image, limit, colors = ramp, low = 0) {
  const words = new Uint32Array(STEPS);
  for (let step = 0; step < STEPS; step++) words[step] = (255 << 24) | (colors[3 * step + 2] << 16) | (colors[3 * step + 1] << 8) | colors[3 * step];
  const out = new Uint32Array(image.data.buffer);
  const scale = (STEPS - 1) / (limit - low);
  for (let i = 0; i < values.length; i++) {
    const at = (values[i] - low) * scale + 0.5;
    out[i] = words[at < 0 ? 0 : at >= STEPS ? STEPS - 1 : at | 0];
  }
  return image;
}

function legend(low, high, colors = color, name = "weight") {
  const bar = el("span", { class: "ramp", "aria-hidden": "true" });
  for (let i = 0; i < 48; i++) {
    const step = el("i");
    step.style.backgroundColor = colors(colors === differenceColor ? (2 * i) / 47 - 1 : i / 47).ground;
    bar.append(step);
  }
  const digits = (value) => (value === 0 ? "0" : value < 0.095 ? value.toPrecision(2) : value.toFixed(2));
  const number = (value) => (typeof value === "string" ? value : (value < 0 ? "−" : low < 0 ? "+" : "") + digits(Math.abs(value)));
  return el("div", { class: "scale ramped" }, name, el("span", {}, number(low)), bar, el("span", {}, number(high)));
}
