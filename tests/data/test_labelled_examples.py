"""Examples kept flat: those that went in come out, whichever are chosen, in little more memory than their text takes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.labelled import hold_out_labelled, read_entailment
from regard.data.labelled_examples import ExampleList, LabelledExample

TEXT = st.one_of(st.text(max_size=7), st.sampled_from(["", "a\nb", "\u00e4\U0001f600"])).map(
    lambda text: text.encode("utf-8", "replace").decode()
)
LABEL = st.sampled_from(["yes", "no", "7", "\u00e4"])


@given(rows=st.lists(st.tuples(LABEL, TEXT, TEXT), max_size=11), data=st.data())
def test_what_is_packed_comes_out_again(rows: list[tuple[str, str, str]], data: st.DataObject) -> None:
    examples = [LabelledExample(label, texts, 3 * number + 1) for number, (label, *texts) in enumerate(rows) for texts in [tuple(texts)]]
    packed = ExampleList.of(examples)
    assert len(packed) == len(examples)
    assert list(packed) == examples
    assert packed == examples
    assert packed[1:3] == examples[1:3]
    assert ExampleList.of(packed) is packed
    if not examples:
        return
    assert packed[-1] == examples[-1]
    for number in (0, 1):
        assert packed.side(number, 0, 50) == [example.texts[number].encode() for example in examples]
    flags = data.draw(st.lists(st.booleans(), min_size=len(examples), max_size=len(examples)))
    assert packed.chosen(np.array(flags)) == [example for example, flag in zip(examples, flags, strict=True) if flag]
    order = data.draw(st.permutations(range(len(examples))))
    assert packed.chosen(np.array(order)) == [examples[number] for number in order]


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_memory_is_that_of_the_text(tmp_path: Path, name: str) -> None:
    lines = [f"a dog number {number} runs\tan animal moves" for number in range(7919)]
    rows = [f"{'yes' if number % 3 else 'no'}\t{line}" for number, line in enumerate(lines)]
    if name == "a.jsonl":
        keys = ("label", "premise", "hypothesis")
        rows = ["{" + ", ".join(f'"{key}": "{cell}"' for key, cell in zip(keys, row.split("\t"), strict=True)) + "}" for row in rows]
    (tmp_path / name).write_text("\n".join(rows) + "\n")
    size = sum(map(len, lines))
    hold_out_labelled(read_entailment(tmp_path / name).examples, 100, seed=1)  # what is imported and cached stays
    tracemalloc.start()
    try:
        file = read_entailment(tmp_path / name)
        kept, held = hold_out_labelled(file.examples, 100, seed=1)
        grown, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(kept), len(held)) == (7819, 100)
    # Twice: the whole and its parts. Besides the text 28 bytes an example; as objects they would take 300 more.
    assert grown < 2 * (size + 40 * len(lines))
    assert most < 5 * (size + 40 * len(lines))
