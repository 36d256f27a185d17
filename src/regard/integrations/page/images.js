// A model that captions an image: the image as `regard.data.images` reads it, and a record as `regard view` has it.

const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => {
    const z = Math.abs(x);
    return z < 1 ? (1.5 * z - 2.5) * z * z + 1 : z < 2 ? (((z - 5) * z + 8) * z - 4) * -0.5 : 0;
  }],
  lanczos: [3, (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)],
};
const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));
const MOST_PIXELS = 100e6;
const TILE = 2048; // of a canvas, whose sides and area browsers limit
const ORIENTATION = 0x0112;
const PRECISION = 2 ** 22; // of the weights of pixels, which are whole numbers, as in Pillow

// The red, green and blue of a file, upright, transparent parts on white.
async function pixelsOfFile(base64) {
  const bytes = bytesOf(base64);
  const orientation = takeOrientation(bytes);
  const unread = () => new Error("This file is no image that the browser can read.");
  const [wide, high] = await imageSizeOf(base64).catch(() => Promise.reject(unread()));
  if (wide * high > MOST_PIXELS) throw new Error(`This image has ${wide} x ${high} pixels; at most ${MOST_PIXELS / 1e6} million can be read.`);
  const bitmap = await createImageBitmap(new Blob([bytes]), { colorSpaceConversion: "none" }).catch(() => Promise.reject(unread()));
  const { width, height } = bitmap;
  const data = new Uint8Array(3 * width * height);
  for (let top = 0; top < height; top += TILE) for (let left = 0; left < width; left += TILE) copyTile(bitmap, left, top, orientation, data);
  bitmap.close();
  return orientation > 4 ? { width: height, height: width, data } : { width, height, data };
}

// Width and height of a file, before its pixels are decoded.
async function imageSizeOf(base64) {
  const image = new Image();
  await new Promise((found, failed) => Object.assign(image, { onload: found, onerror: failed, src: `data:image/*;base64,${base64}` }));
  return [image.naturalWidth, image.naturalHeight];
}

// Copy a tile of a bitmap to where it lies in the upright image (EXIF: 2 to 4 mirror, 5 to 8 exchange rows and columns, too).
function copyTile(bitmap, left, top, orientation, found) {
  const { width, height } = bitmap;
  const [wide, high] = [Math.min(TILE, width - left), Math.min(TILE, height - top)];
  const context = canvasOf(wide, high).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, wide, high);
  context.drawImage(bitmap, -left, -top);
  const { data } = context.getImageData(0, 0, wide, high);
  const [across, down] = orientation > 4 ? [height, 1] : [1, width];
  const backwards = [2, 3, 7, 8].includes(orientation);
  const upwards = [3, 4, 6, 7].includes(orientation);
  for (let y = 0, from = 0; y < high; y++) {
    const line = down * (upwards ? height - 1 - top - y : top + y);
    for (let x = 0; x < wide; x++, from += 4) {
      const to = 3 * (line + across * (backwards ? width - 1 - left - x : left + x));
      found[to] = data[from];
      found[to + 1] = data[from + 1];
      found[to + 2] = data[from + 2];
    }
  }
}

// The orientation in the EXIF data of a WebP file, 1 (upright) to 8. It is set to upright: not all browsers turn such a file.
function takeOrientation(bytes) {
  const view = new DataView(bytes.buffer);
  const says = (at, name) => [...name].every((letter, i) => bytes[at + i] === letter.charCodeAt(0));
  if (!says(0, "RIFF") || !says(8, "WEBP")) return 1;
  try {
    let at = 12;
    while (!says(at, "EXIF")) at += 8 + view.getUint32(at + 4, true) + (view.getUint32(at + 4, true) % 2);
    const start = at + (says(at + 8, "Exif") ? 14 : 8);
    const little = says(start, "II");
    const entries = start + view.getUint32(start + 4, little);
    for (let i = 0; i < view.getUint16(entries, little); i++) {
      const entry = entries + 2 + 12 * i;
      if (view.getUint16(entry, little) !== ORIENTATION) continue;
      const found = view.getUint16(entry + 8, little);
      view.setUint16(entry + 8, 1, little);
      return found > 0 && found < 9 ? found : 1;
    }
  } catch { /* no EXIF data, or damaged: the picture may be intact */ }
  return 1;
}

function canvasOf(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height });
}

// An image as a square of the size that the run reads: a crop or all of it, averaged in blocks while it is far larger, and resampled.
function fitted(image, { size, fit, keep, resample }) {
  const side = Math.min(image.width, image.height);
  const [across, down] = fit === "crop" ? [side, side] : [image.width, image.height];
  const box = fit === "crop" ? [Math.floor((image.width - side) / 2), Math.floor((image.height - side) / 2)] : [0, 0];
  const factors = [across, down].map((length) => Math.max(1, Math.floor(length / (2 * size))));
  const small = averaged(image, box, [across, down], factors);
  const edges = [across / factors[0], down / factors[1]].map((length) => [(length * (1 - keep)) / 2, (length * (1 + keep)) / 2]);
  const wide = resampled(small, edges[0], size, FILTERS[resample], true);
  return resampled(wide, edges[1], size, FILTERS[resample], false);
}

function averaged({ width, data }, [left, top], [across, down], [stepX, stepY]) {
  const found = { width: Math.ceil(across / stepX), height: Math.ceil(down / stepY) };
  found.data = new Uint8Array(3 * found.width * found.height);
  for (let y = 0, at = 0; y < found.height; y++) {
    for (let x = 0; x < found.width; x++, at += 3) {
      const [endX, endY] = [Math.min(across, (x + 1) * stepX), Math.min(down, (y + 1) * stepY)];
      const count = (endX - x * stepX) * (endY - y * stepY);
      const factor = Math.floor(2 ** 24 / count);
      for (let channel = 0; channel < 3; channel++) {
        let sum = count >> 1;
        for (let v = y * stepY; v < endY; v++) for (let u = x * stepX; u < endX; u++) sum += data[3 * ((top + v) * width + left + u) + channel];
        found.data[at + channel] = Math.floor((sum * factor) / 2 ** 24);
      }
    }
  }
  return found;
}

// One axis of an image: every new pixel is a weighted sum of those around its place between two edges.
function resampled(image, [first, last], size, [reach, filter], across) {
  const length = across ? image.width : image.height;
  if (length === size && first === 0 && last === size) return image;
  const found = across ? { width: size, height: image.height } : { width: image.width, height: size };
  found.data = new Uint8Array(3 * found.width * found.height);
  const scale = (last - first) / size;
  const stretch = Math.max(1, scale);
  const [lines, step, jump] = across ? [image.height, 3, 3 * image.width] : [image.width, 3 * image.width, 3];
  const [ownStep, ownJump] = across ? [3, 3 * size] : [3 * image.width, 3];
  for (let i = 0; i < size; i++) {
    const center = first + (i + 0.5) * scale;
    const from = Math.max(0, Math.trunc(center - reach * stretch + 0.5));
    const to = Math.min(length, Math.trunc(center + reach * stretch + 0.5));
    const shares = Array.from({ length: to - from }, (_, j) => filter((j + from - center + 0.5) * (1 / stretch)));
    const part = 1 / shares.reduce((sum, share) => sum + share, 0);
    const weights = shares.map((share) => Math.trunc(share * part * PRECISION + (share * part < 0 ? -0.5 : 0.5)));
    for (let line = 0; line < lines; line++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = PRECISION / 2;
        for (let j = 0; j < weights.length; j++) sum += weights[j] * image.data[line * jump + (from + j) * step + channel];
        found.data[line * ownJump + i * ownStep + channel] = within(Math.floor(sum / PRECISION), 0, 255);
      }
    }
  }
  return found;
}

// Pixels (H, W, 3) as the numbers (1, 3, H, W) that the encoder reads.
function normalized({ width, height, data }, { mean, std }) {
  const single = Math.fround;
  const found = new Float32Array(3 * width * height);
  for (let channel = 0; channel < 3; channel++) {
    const factor = single(1 / single(255 * single(std[channel])));
    const shift = single(single(mean[channel]) / single(std[channel]));
    for (let i = 0; i < width * height; i++) found[channel * width * height + i] = single(data[3 * i + channel] * factor) - shift;
  }
  return tensor([1, 3, height, width], found);
}

function addressOf({ width, height, data }) {
  const canvas = canvasOf(width, height);
  const whole = Uint8ClampedArray.from({ length: 4 * width * height }, (_, i) => (i % 4 === 3 ? 255 : data[3 * Math.floor(i / 4) + (i % 4)]));
  canvas.getContext("2d").putImageData(new ImageData(whole, width, height), 0, 0);
  return canvas.toDataURL("image/png");
}

// The cells of a grid over an image.
function gridItems(image, [rows, columns]) {
  const labels = Array.from({ length: rows * columns }, (_, i) => `${Math.floor(i / columns) + 1},${(i % columns) + 1}`);
  return { rows, columns, image: addressOf(image), size: [image.width, image.height], labels };
}

function captionRecord(pixels) {
  const image = fitted(pixels, model.image);
  const inputs = { images: normalized(image, model.image) };
  const { target } = networks().vocabularies;
  const told = (tokens) => target.decode(tokens.filter((token) => token !== model.special.end));
  const hypotheses = search(inputs, model.decoding.max_length).map((found) => ({ ...found, text: told(found.tokens) }));
  return searchRecord({ inputs, hypotheses, items: { image: gridItems(image, model.grid) }, query: "caption", key: "image", kind: "image" });
}
