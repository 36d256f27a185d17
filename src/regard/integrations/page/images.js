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
const PRECISION = 2 ** 22; // of the weights of pixels, which are whole numbers, as in Pillow

// The red, green and blue of a file, transparent parts on white.
async function pixelsOfFile(base64) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytesOf(base64)]), { colorSpaceConversion: "none" });
  } catch {
    throw new Error("This file is no image that the browser can read.");
  }
  const { width, height } = bitmap;
  const context = canvasOf(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  return { width, height, data: Uint8Array.from({ length: 3 * width * height }, (_, i) => data[4 * Math.floor(i / 3) + (i % 3)]) };
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
