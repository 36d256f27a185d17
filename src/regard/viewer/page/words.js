// Sub-words merged to words: keys have the sum of a word's tokens, queries the mean.

const WITH_TOKENS = ["areas", "beam"]; // views of tokens, which areas and hypotheses are made of
const wordMatrices = new WeakMap();

const merging = () => state.words && !WITH_TOKENS.includes(state.view);
const hasWords = (r, map) => Boolean(r.items[map.query].words || r.items[map.key].words);

// The sign of the space before a word, by how tokens mark words (`Tokens.marks`).
const WORD_SIGNS = { "": /^[␣▁Ġ](?=.)/u, space: /^[␣▁](?=.)/u, none: /^$/ };
const unmarked = ({ labels, marks = "" }) => labels.map((token) => token.replace(WORD_SIGNS[marks], ""));
const named = (items) => (items.words ? items.words.map(([, name]) => name) : unmarked(items));

function wordMatrix(matrix) {
  const { r, map } = matrix;
  const [rowWords, columnWords] = [r.items[map.query].words, r.items[map.key].words];
  const [query, key] = [named(r.items[map.query]), named(r.items[map.key])];
  if (!rowWords && !columnWords) return { ...matrix, query, key };
  if (!wordMatrices.has(map)) wordMatrices.set(map, new Map());
  const known = wordMatrices.get(map);
  if (!known.has(matrix.head)) known.set(matrix.head, merged(matrix.weights, matrix.rows, matrix.columns, rowWords, columnWords));
  return { ...matrix, rowWords, rows: query.length, columns: key.length, query, key, weights: known.get(matrix.head) };
}

// For each token the number of its word.
function wordsOfTokens(words, count) {
  if (!words) return Array.from({ length: count }, (_, i) => i);
  const found = [];
  words.forEach(([start], word) => { for (let i = start; i < (word + 1 < words.length ? words[word + 1][0] : count); i++) found[i] = word; });
  return found;
}

function merged(weights, rows, columns, rowWords, columnWords) {
  const [rowOfToken, columnOfToken] = [wordsOfTokens(rowWords, rows), wordsOfTokens(columnWords, columns)];
  const [high, wide] = [rowWords ? rowWords.length : rows, columnWords ? columnWords.length : columns];
  const found = new Float64Array(high * wide);
  const tokens = new Array(high).fill(0);
  for (const word of rowOfToken) tokens[word]++;
  for (let row = 0; row < rows; row++) {
    const at = rowOfToken[row] * wide;
    for (let column = 0; column < columns; column++) found[at + columnOfToken[column]] += weights[row * columns + column] / tokens[rowOfToken[row]];
  }
  return found;
}

// The tokens of a row: the first, and the one after its last.
function tokensOfRow({ rowWords, map }, row) {
  if (!rowWords) return [row, row + 1];
  return [rowWords[row][0], row + 1 < rowWords.length ? rowWords[row + 1][0] : map.shape[1]];
}

// The probability of a row's tokens, each after those before it; null where it is not known.
function probabilityOf(matrix, row) {
  const scores = matrix.scores || matrix.r.scores[matrix.map.query];
  return scores ? Math.exp(scores.slice(...tokensOfRow(matrix, row)).reduce((sum, score) => sum + score, 0)) : null;
}

// Alternatives of a row's (first) token.
function alternativesOf(matrix, row) {
  const known = matrix.r.alternatives[matrix.map.query];
  if (!known) return null;
  const [first] = tokensOfRow(matrix, row);
  return { token: labelsOf(matrix.r, matrix.map.query)[first], pairs: known[first] };
}

// Make a change after which views may show words instead of tokens, or the reverse: the selected cell stays.
function keepingCell(change) {
  const wereWords = merging();
  change();
  const map = currentMap();
  if (merging() === wereWords || !drawable(map)) return;
  const placed = (items, place, count) => {
    const { words } = record().items[items];
    if (!words) return place;
    return wereWords ? words[within(place, 0, words.length - 1)][0] : wordsOfTokens(words, count)[within(place, 0, count - 1)];
  };
  state.row = placed(map.query, state.row, map.shape[1]);
  state.column = placed(map.key, state.column, map.shape[2]);
}

$("words").addEventListener("change", () => {
  keepingCell(() => { state.words = $("words").checked; });
  show();
});
