"""Caption tokenizer like the official tool's: Penn Treebank rules, lower-case, without punctuation."""

from __future__ import annotations

import re

from regard.errors import DataError, shown

# Named in the signature of every score of texts.
TOKENIZER = "regard-ptb"

# Dropped by the official tool. It means to drop brackets, too, but compares them in capitals, so they stay.
PUNCTUATION = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
# Typographic characters and their ASCII replacements.
PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u2026": "..."})
# Words that keep their full stop.
ABBREVIATIONS = "mr mrs ms dr prof st sr jr rev gen col sgt capt lt gov sen rep inc ltd co corp vs etc mt ft no ave blvd rd dept"
# Two words written as one.
JOINED = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
    "'tis": ("'t", "is"),
    "'twas": ("'t", "was"),
}
_TOKEN = re.compile(
    rf"""
    https?://[^\s"<>]+ | [\w.]+@[\w.]+\w | \w+\.(?:com|org|net)\b   # addresses
    | '(?:tis|twas|em)\b | 'n' | y'(?=all\b)
    | '[0-9]{{2}}s?\b                                               # '80s
    | (?:[^\W\d_]\.){{2,}}                                          # u.s. p.m.
    | \b(?:{"|".join(ABBREVIATIONS.split())})\.(?=\s+\S)             # mr.
    | [$\u00a3\u20ac#%&@*+=<>|~^_\\/]
    | [-+]?[0-9]+(?:[.,:/][0-9]+)*\w*(?:-\w+)*                    # 1,000 3.5 10:30 1/2 2nd 20-year-old
    | \w+?(?=n't\b)                                                # do n't
    | n't\b
    | '(?:s|re|ve|ll|d|m)\b
    | \w+(?:(?:[-&]|'(?!(?:s|re|ve|ll|d|m)\b))\w+)*                 # t-shirt o'clock
    | \.\.\.
    | --+
    | ''
    | ``
    | \S
    """,
    re.VERBOSE,
)


def caption_tokens(text: str) -> list[str]:
    """Split a caption into tokens.

    Text is lower-cased, and typographic quotes and dashes become ASCII. Then, from left to right: addresses stay whole; abbreviations keep
    their full stop (`p.m.`, and a list such as `mr.` inside a caption); numbers keep inner commas, points, colons and slashes; hyphenated
    words stay whole; `n't 's 're 've 'll 'd 'm` are separate tokens, `cannot` and similar words two; brackets become `-lrb-` and so on; any
    other sign is a token. Finally the tokens `'' ' `` ` . ? ! , : - -- ... ;` are dropped.

    Differs from the official tool, which runs Stanford CoreNLP's PTBTokenizer in Java: its lists of abbreviations, acronyms and emoticons
    are longer, it decodes HTML entities (`&amp;`), keeps runs of marks (`?!`) and some full stops of single letters. 4 of the 40,450
    captions of Flickr8k differ. Compare scores of the same tokenizer only; each signature names it.

    Args:
        text: a caption.

    Returns:
        The tokens.

    Raises:
        DataError: the caption is no text.

    Example:
        >>> caption_tokens("A man's T-shirt doesn't fit, at 10:30 p.m.")
        ['a', 'man', "'s", 't-shirt', 'does', "n't", 'fit', 'at', '10:30', 'p.m.']
    """
    if not isinstance(text, str):
        raise DataError(f"caption_tokens: text must be text, found {shown(text)}")
    tokens = []
    for token in _TOKEN.findall(text.lower().translate(PLAIN)):
        tokens += JOINED.get(token) or (BRACKETS.get(token, token),)
    return [token for token in tokens if token not in PUNCTUATION and token != '"']
