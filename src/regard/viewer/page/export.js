// The view at hand as a picture: its nodes are read from the screen and written as SVG; a PNG is that SVG, drawn.

const MARGIN = 16;
const LEFT_OUT = "input, select, .tools, .unseen, [hidden], title";
const NOT_XML = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu; // no picture with one of these can be opened
const PAINTED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "font-size", "font-family", "vector-effect", "opacity", "shape-rendering"];

function pictureOfView() {
  const view = $("view");
  view.classList.add("whole"); // nothing scrolled away while it is measured
  const frame = view.getBoundingClientRect();
  const out = shape("svg", { xmlns: VECTOR });
  const bounds = { right: 0, bottom: 0 };
  const ink = { out, left: frame.left - MARGIN, top: frame.top - MARGIN, bounds };
  copyNode(view, ink);
  const width = Math.ceil(bounds.right - frame.left + 2 * MARGIN);
  const height = Math.ceil(bounds.bottom - frame.top + 2 * MARGIN);
  view.classList.remove("whole");
  for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) out.setAttribute(name, value);
  out.prepend(shape("title", {}, document.title), shape("rect", { width, height, fill: getComputedStyle(document.documentElement).backgroundColor }));
  return { text: new XMLSerializer().serializeToString(out).replace(NOT_XML, "\ufffd"), width, height };
}

function copyNode(node, ink) {
  if (node.nodeType === Node.TEXT_NODE) return copyText(node, ink);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0 || !box.width) return;
  if (node.localName === "svg") return copyDrawing(node, box, ink);
  if (node.localName === "canvas") return copyCanvas(node, box, ink);
  copyGround(style, box, ink);
  for (const child of node.childNodes) copyNode(child, ink);
}

function reach(box, { bounds }) {
  bounds.right = Math.max(bounds.right, box.right);
  bounds.bottom = Math.max(bounds.bottom, box.bottom);
}

const clear = (value) => value === "transparent" || /,\s*0\)$|\/\s*0\)$/.test(value);

function copyGround(style, box, ink) {
  const line = parseFloat(style.outlineWidth) && style.outlineStyle !== "none" ? style.outlineColor : null;
  const border = parseFloat(style.borderTopWidth) && parseFloat(style.borderLeftWidth) && style.borderTopStyle !== "none" ? style.borderTopColor : null;
  const fill = clear(style.backgroundColor) ? null : style.backgroundColor;
  if (!fill && !line && !border) return;
  const round = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
  ink.out.append(shape("rect", { x: (box.left - ink.left).toFixed(2), y: (box.top - ink.top).toFixed(2), width: box.width.toFixed(2), height: box.height.toFixed(2), rx: round || null, fill: fill || "none", stroke: line || border, "stroke-width": line ? 2 : border ? 1 : null, "fill-opacity": style.opacity === "1" ? null : style.opacity }));
  reach(box, ink);
}

function copyCanvas(node, box, ink) {
  ink.out.append(shape("image", { href: node.toDataURL(), x: box.left - ink.left, y: box.top - ink.top, width: box.width, height: box.height, "image-rendering": "pixelated", preserveAspectRatio: "none" }));
  reach(box, ink);
}

function copyDrawing(node, box, ink) {
  const copy = node.cloneNode(true);
  const from = [node, ...node.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((target, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of PAINTED) target.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "id"]) target.removeAttribute(name);
  });
  for (const [name, value] of [["x", box.left - ink.left], ["y", box.top - ink.top], ["width", box.width], ["height", box.height], ["overflow", "visible"]]) copy.setAttribute(name, value);
  ink.out.append(copy);
  reach(box, ink);
}

// Each line of text keeps its position on the screen, centred: it fits in either direction and in any font.
function copyText(node, ink) {
  if (!node.data.trim()) return;
  const style = getComputedStyle(node.parentNode);
  if (parseFloat(style.fontSize) === 0) return;
  const upright = style.writingMode.startsWith("vertical");
  for (const { text, box } of linesOf(node, upright)) {
    const clip = clipOf(node.parentNode, box);
    const x = (clip.left + clip.right) / 2 - ink.left;
    const y = (clip.top + clip.bottom) / 2 - ink.top;
    const line = shape("text", {
      x: x.toFixed(2), y: y.toFixed(2), fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight,
      "text-anchor": "middle", "dominant-baseline": "central", direction: style.direction, "unicode-bidi": "isolate",
      transform: upright ? `rotate(-90 ${x.toFixed(2)} ${y.toFixed(2)})` : null, opacity: style.opacity === "1" ? null : style.opacity,
    }, fitted(text, box, clip, upright));
    ink.out.append(line);
    reach(clip, ink);
  }
}

function linesOf(node, upright) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const whole = range.getClientRects();
  if (upright || whole.length === 1) return [{ text: node.data.trim(), box: range.getBoundingClientRect() }];
  const lines = [];
  for (const match of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, match.index);
    range.setEnd(node, match.index + match[0].trimEnd().length);
    const box = range.getBoundingClientRect();
    const last = lines[lines.length - 1];
    if (last && Math.abs(last.box.top - box.top) < 4) {
      last.text += match[0];
      last.box = new DOMRect(Math.min(last.box.left, box.left), box.top, Math.max(last.box.right, box.right) - Math.min(last.box.left, box.left), box.height);
    } else if (box.width) {
      lines.push({ text: match[0], box });
    }
  }
  return lines;
}

// The part of a box that its container does not clip.
function clipOf(node, box) {
  const clip = { left: box.left, right: box.right, top: box.top, bottom: box.bottom };
  for (let at = node; at && at.id !== "view"; at = at.parentElement) {
    if (getComputedStyle(at).textOverflow !== "ellipsis") continue;
    const own = at.getBoundingClientRect();
    clip.left = Math.max(clip.left, own.left);
    clip.right = Math.min(clip.right, own.right);
    clip.top = Math.max(clip.top, own.top);
    clip.bottom = Math.min(clip.bottom, own.bottom);
  }
  return clip;
}

function fitted(text, box, clip, upright) {
  const [full, room] = upright ? [box.bottom - box.top, clip.bottom - clip.top] : [box.right - box.left, clip.right - clip.left];
  if (room >= full - 1) return text.trim();
  const kept = [...text].slice(0, Math.max(1, Math.floor(([...text].length * room) / full) - 1));
  return `${kept.join("")}…`;
}

function fileName(ending) {
  const name = `${nameOf(record(), state.index)} ${whenOf(record())}${viewOf(state.view).name}`.toLowerCase();
  return `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "view"}.${ending}`;
}

function hand(blob, name) {
  const link = el("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  $("said").textContent = `${name} saved`;
}

function saveVector() {
  hand(new Blob([pictureOfView().text], { type: "image/svg+xml" }), fileName("svg"));
}

function savePixels() {
  const { text, width, height } = pictureOfView();
  const image = new Image();
  image.addEventListener("load", () => {
    const scale = Math.min(2, 8000 / Math.max(width, height));
    const canvas = el("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => hand(blob, fileName("png")), "image/png");
  });
  image.addEventListener("error", () => { $("said").textContent = "this view could not be drawn as PNG; SVG may do"; });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

$("save-svg").addEventListener("click", saveVector);
$("save-png").addEventListener("click", savePixels);
$("print").addEventListener("click", () => print());
