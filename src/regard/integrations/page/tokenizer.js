// Text to the token ids of a run's vocabulary and back, by the rules of `regard.data.Vocabulary`.

const UNKNOWN = 1;
const WORD_SPACE = "▁";
// How byte-level BPE divides text first (GPT-2).
const BYTE_LEVEL = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const LINE_BREAKS = /[\0\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/g;
const wholeCharacters = (text) => text.toWellFormed();

function byteAlphabet() {
  const kept = [];
  for (let byte = 0; byte < 256; byte++) if ((byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae) kept.push(byte);
  const alphabet = new Array(256);
  for (const byte of kept) alphabet[byte] = String.fromCharCode(byte);
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) if (alphabet[byte] === undefined) alphabet[byte] = String.fromCharCode(next++);
  return alphabet;
}

// A binary heap: the least number first.
function pushLeast(heap, number) {
  let at = heap.length;
  for (let above = (at - 1) >> 1; at > 0 && heap[above] > number; above = (at - 1) >> 1) {
    heap[at] = heap[above];
    at = above;
  }
  heap[at] = number;
}

function popLeast(heap) {
  const least = heap[0];
  const last = heap.pop();
  let at = 0;
  for (let below = 1; below < heap.length; below = 2 * at + 1) {
    if (below + 1 < heap.length && heap[below + 1] < heap[below]) below++;
    if (heap[below] >= last) break;
    heap[at] = heap[below];
    at = below;
  }
  if (heap.length) heap[at] = last;
  return least;
}

class PageVocabulary {
  constructor(given) {
    Object.assign(this, given);
    this.ids = new Map(this.tokens.map((token, i) => [token, i]));
    if (this.kind === "bpe") {
      this.alphabet = byteAlphabet();
      this.ranks = new Map(this.merges.map((pair, i) => [pair, i]));
      this.bytes = new Map(this.alphabet.map((character, byte) => [character, byte]));
    }
    if (this.kind === "unigram") {
      // Not Math.max(...): a call takes about 120,000 arguments.
      this.longest = this.tokens.reduce((most, token) => Math.max(most, [...token].length), 0);
      this.unknownScore = this.scores.reduce((least, score) => Math.min(least, score), Infinity) - 10;
    }
  }

  // The ids of a text, and the pieces that they stand for.
  encode(given) {
    const text = wholeCharacters(given);
    if (this.kind === "bpe") return this.named([...text.matchAll(BYTE_LEVEL)].flatMap(([part]) => this.merged(part)).map((piece) => this.ids.get(piece)));
    if (this.kind === "unigram") return this.unigram(text);
    const parts = this.kind === "word" ? text.split(/\p{White_Space}+/u).filter((part) => part) : [...text];
    return { ids: parts.map((part) => this.ids.get(part) ?? UNKNOWN), pieces: parts };
  }

  named(ids) {
    return { ids, pieces: ids.map((id) => this.pieces[id]) };
  }

  // Merges the pair of lowest rank, the leftmost of several, while there is one: a pair waits as rank * size + place.
  merged(part) {
    const pieces = Array.from(new TextEncoder().encode(part), (byte) => this.alphabet[byte]);
    const size = pieces.length;
    const [before, after] = [pieces.map((_, i) => i - 1), pieces.map((_, i) => i + 1)];
    const rankAt = (i) => (i >= 0 && after[i] < size ? this.ranks.get(`${pieces[i]} ${pieces[after[i]]}`) : undefined);
    const waiting = [];
    const offer = (i) => {
      const rank = rankAt(i);
      if (rank !== undefined) pushLeast(waiting, rank * size + i);
    };
    pieces.forEach((_, i) => offer(i));
    while (waiting.length) {
      const least = popLeast(waiting);
      const at = least % size;
      // Pairs whose pieces were merged otherwise since are still waiting.
      if (pieces[at] === null || rankAt(at) !== Math.floor(least / size)) continue;
      const gone = after[at];
      pieces[at] += pieces[gone];
      pieces[gone] = null;
      after[at] = after[gone];
      if (after[at] < size) before[after[at]] = at;
      offer(before[at]);
      offer(at);
    }
    return pieces.filter((piece) => piece !== null);
  }

  // The most probable pieces of each word; characters that no piece has become one unknown token.
  unigram(text) {
    if (!text) return { ids: [], pieces: [] };
    const spaced = text.replaceAll(" ", WORD_SPACE);
    const whole = spaced.startsWith(WORD_SPACE) ? spaced : WORD_SPACE + spaced;
    const ids = [];
    const pieces = [];
    for (const word of whole.match(/▁[^▁]*/g)) {
      for (const [piece, id] of this.best([...word])) {
        ids.push(id);
        pieces.push(id === UNKNOWN ? piece.replaceAll(WORD_SPACE, " ") : this.pieces[id]);
      }
    }
    return { ids, pieces };
  }

  best(characters) {
    const size = characters.length;
    const score = new Float64Array(size + 1).fill(-Infinity);
    const from = new Array(size + 1).fill(0);
    const ids = new Array(size + 1).fill(UNKNOWN);
    score[0] = 0;
    const offer = (start, end, value, id) => {
      if (value > score[end]) [score[end], from[end], ids[end]] = [value, start, id];
    };
    for (let start = 0; start < size; start++) {
      let piece = "";
      let alone = false;
      for (let end = start + 1; end <= Math.min(size, start + this.longest); end++) {
        piece += characters[end - 1];
        const id = this.ids.get(piece);
        if (id === undefined || id < 4) continue;
        offer(start, end, score[start] + this.scores[id], id);
        alone ||= end === start + 1;
      }
      if (!alone) offer(start, start + 1, score[start] + this.unknownScore, UNKNOWN);
    }
    const found = [];
    for (let end = size; end > 0; end = from[end]) {
      const piece = characters.slice(from[end], end).join("");
      if (ids[end] === UNKNOWN && found.length && found[0][1] === UNKNOWN) found[0][0] = piece + found[0][0];
      else found.unshift([piece, ids[end]]);
    }
    return found;
  }

  // The text of ids as one line; padding, begin and end have none.
  decode(given) {
    const ids = given.filter((id) => id !== 0 && id !== 2 && id !== 3);
    let text;
    if (this.kind === "bpe") {
      const bytes = ids.flatMap((id) => (id === UNKNOWN ? [...new TextEncoder().encode("<unk>")] : [...this.tokens[id]].map((character) => this.bytes.get(character))));
      text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    } else {
      const parts = ids.map((id) => (id === UNKNOWN ? "<unk>" : this.kind === "unigram" ? this.tokens[id].replaceAll(WORD_SPACE, " ") : this.tokens[id]));
      text = parts.join(this.kind === "word" ? " " : "");
      if (this.kind === "unigram" && text.startsWith(" ")) text = text.slice(1);
    }
    return text.replace(LINE_BREAKS, " ");
  }
}
