// Divides lines that are longer than the model was trained for, by the rules of `regard.tasks.long_lines`.

const SPACE = "[\\p{White_Space}\\x1c-\\x1f]"; // as Python's, which counts four control characters
const AROUND = new RegExp(`^${SPACE}+|${SPACE}+$`, "gu");
const PAUSES = [`[;:.!?\\u2026\\u3002\\uff01\\uff1f]["')\\u201d]?${SPACE}`, `[,)\\u2014\\u2013]${SPACE}`, SPACE].map((pause) => new RegExp(pause, "gu"));
const MOST_CHARACTERS = 50;

const stripped = (line) => line.replace(AROUND, "");

// Whether a text has too many tokens; one of very many characters is not encoded.
function tooLong(text, limit) {
  return [...text].length > MOST_CHARACTERS * limit || networks().vocabularies.source.encode(text).ids.length > limit;
}

// The parts of a line that is too long, without the white space around them; any other line as it is.
function partsOf(line, limit) {
  const parts = stripped(line) && tooLong(line, limit) ? divided(line, limit) : [line];
  return parts.length > 1 ? parts.map(stripped) : parts;
}

// How many characters there are up to the end of each pause.
function pausesIn(text, pause) {
  const found = [];
  let [at, count] = [0, 0];
  for (const match of text.matchAll(pause)) {
    const end = match.index + match[0].length;
    count += [...text.slice(at, end)].length;
    found.push(count);
    at = end;
  }
  return found;
}

// As `divide_line`: joined, the parts are the line.
function divided(line, limit) {
  const text = stripped(line);
  const characters = [...text]; // a position counts characters, not their halves
  const size = characters.length;
  if (size < 2 || !tooLong(text, limit)) return [line];
  const [first, last] = [Math.floor(size / 5), size - Math.floor(size / 5)];
  const inner = characters.slice(first, last).join("");
  let ends = [Math.floor(size / 2)];
  for (const pause of PAUSES) {
    const found = pausesIn(inner, pause);
    if (found.length) {
      ends = found.map((end) => first + end);
      break;
    }
  }
  const far = (end) => Math.abs(end - size / 2);
  const end = ends.reduce((best, each) => (far(each) < far(best) ? each : best));
  const at = line.indexOf(text) + characters.slice(0, end).join("").length;
  return [...divided(line.slice(0, at), limit), ...divided(line.slice(at), limit)];
}
