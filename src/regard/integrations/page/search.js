// Beam search for one sentence, by the rules of `regard.decoding.beam_search`.

const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;
const LEAST_COVERAGE = 1e-6;

// The largest of V logits at a place, all of which must be numbers.
function topOf(logits, start, size) {
  let top = -Infinity;
  for (let i = 0; i < size; i++) top = Math.max(top, logits[start + i]);
  if (!Number.isFinite(top)) throw new Error("The logits hold NaN or infinity: this model cannot be used.");
  return top;
}

// The log-probabilities of V logits at a place, what is forbidden at -Infinity.
function logProbabilities(logits, start, size, forbidden) {
  const top = topOf(logits, start, size);
  let sum = 0;
  for (let i = 0; i < size; i++) sum += Math.exp(logits[start + i] - top);
  const normalizer = top + Math.log(sum);
  const found = new Float32Array(size);
  for (let i = 0; i < size; i++) found[i] = Math.min(0, logits[start + i] - normalizer);
  for (const token of forbidden) found[token] = -Infinity;
  return found;
}

// The `count` best of some numbers, a tie going to the lower place.
function bestOf(values, count) {
  const best = [];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (best.length === count && !(value > values[best[count - 1]])) continue;
    if (value === -Infinity) continue;
    let at = best.length;
    while (at > 0 && value > values[best[at - 1]]) at--;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

// The tokens that would complete n tokens in a row that a hypothesis holds already.
function repeats(tokens, n) {
  const found = [];
  if (n && tokens.length >= n) {
    const begun = tokens.slice(tokens.length - n + 1);
    for (let i = 0; i + n <= tokens.length; i++) if (begun.every((token, j) => token === tokens[i + j])) found.push(tokens[i + n - 1]);
  }
  return found;
}

// `step(tokens, beams)` reads the last token of each hypothesis, which continues that of `beams` of the step before: logits (K, V) and
// weights (K, S) or null.
function beamSearch(step, { begin, end, banned, maxLength, size, settings }) {
  const beam = settings.beam_size;
  const ceiling = lengthPenalty(maxLength, settings.length_penalty);
  const finished = [];
  let live = [{ tokens: [], total: 0, logProbs: [], rows: [], covered: null }];
  let beams = [0];
  for (let length = 1; live.length && length <= maxLength; length++) {
    const { logits, weights, columns } = step(live.map(({ tokens }) => (tokens.length ? tokens.at(-1) : begin)), beams);
    const candidates = live.flatMap((own, k) => {
      const forbidden = [...banned, ...(length <= settings.min_length ? [end] : []), ...repeats(own.tokens, settings.no_repeat_ngram_size)];
      const logProbs = logProbabilities(logits, k * size, size, forbidden);
      const best = bestOf(logProbs, beam + 1);
      const row = weights && weights.slice(k * columns, (k + 1) * columns);
      const offered = best.length ? best.map((token) => [token, logProbs[token]]) : [[end, 0]];
      return offered.map(([token, logProb]) => ({ own, k, row, token, logProb, total: Math.fround(own.total + logProb) }));
    });
    const ranked = candidates.map((found, i) => [found, i]).sort(([a, i], [b, j]) => b.total - a.total || i - j).map(([found]) => found).slice(0, 2 * beam);
    const others = ranked.filter(({ token }) => token !== end).slice(0, beam);
    const ends = ranked.filter((found, i) => (found.token === end ? i < beam : length === maxLength && others.includes(found)));
    for (const found of ends) finished.push(grown(found, length, settings));
    finished.sort((a, b) => b.score - a.score); // stable: a tie goes to what ended first
    const worst = finished.length >= beam ? finished[beam - 1].score : -Infinity;
    if (length === maxLength || finished.length >= beam || !others.length || others[0].total / ceiling <= worst) break;
    live = others.map((found) => grown(found, length, settings));
    beams = others.map(({ k }) => k);
  }
  return finished.slice(0, beam);
}

function grown({ own, row, token, logProb, total }, length, settings) {
  let covered = own.covered;
  let score = total / lengthPenalty(length, settings.length_penalty);
  if (settings.coverage_penalty && row) {
    covered = row.map((weight, i) => weight + (covered ? covered[i] : 0));
    for (const sum of covered) score += settings.coverage_penalty * Math.log(within(sum, LEAST_COVERAGE, 1));
  }
  return { tokens: [...own.tokens, token], total, score, covered, logProbs: [...own.logProbs, logProb], rows: row ? [...own.rows, row] : own.rows };
}
