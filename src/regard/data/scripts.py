"""Scripts that write no spaces between words."""

UNSPACED = "\u3005-\u3007\u3041-\u3096\u30a1-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Ideographs and kana of Chinese and Japanese, as a range of a regular expression; each counts as a word."""
UNSPACED_PUNCTUATION = "\u3000-\u3004\u3008-\u303f\uff01-\uff60"
"""Their punctuation, likewise; no space separates it from the next sentence."""
UNSPACED_BYTES = range(0xE3, 0xEA)
"""First bytes of their letters in UTF-8; few other letters share them."""
