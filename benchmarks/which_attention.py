"""The table of docs/which-attention.md: what to use when, each figure looked up in the table it comes from.

    python benchmarks/which_attention.py
    python benchmarks/fill_tables.py

Writes which_attention.json from the other files of docs/results. A row or a column that is no longer there is an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from multi30k import ROOT, write

RESULTS = ROOT / "docs" / "results"


def value(table: str, row: str | Sequence[str], column: str) -> Any:
    """Return a cell: of the row that begins with these cells.

    Raises:
        SystemExit: there is no such table, row or column; names it.
    """
    found = json.loads((RESULTS / f"{table}.json").read_text(encoding="utf-8"))
    wanted = [row] if isinstance(row, str) else list(row)
    rows = [cells for cells in found["rows"] if [str(cell) for cell in cells[: len(wanted)]] == wanted]
    if not rows or column not in found["columns"]:
        raise SystemExit(f"{table}.json: no row {wanted} with a column {column!r}")
    return rows[0][found["columns"].index(column)]


def rows() -> list[list[str]]:
    """Return what the table holds: task, advice, what it buys, what it costs, how sure it is, where the figures are."""
    seeds = [value("multi30k_transformer", "Transformer", f"BLEU, seed {number}") for number in (1, 2)]
    mean = {name: value("multi30k_transformer", name, "mean") for name in ("areas, Eq. 3 and 4", "areas, Eq. 9", "crossed co-attention")}
    step = {name: value("area_step", name, "ratio") for name in ("areas, Eq. 3 and 4", "areas, Eq. 9")}
    search = {name: value("area_search", name, "ratio") for name in step}
    crossed = value("multi30k_transformer", "crossed co-attention", "parameters") / value(
        "multi30k_transformer", "Transformer", "parameters"
    )
    longer = value("length", "32", "crossed, s") / value("length", "32", "ordinary, s")
    soft, hard = "Show, Attend and Tell, soft", "Show, Attend and Tell, hard (best cell)"
    models = (soft, "Show, Attend and Tell, hard", "Transformer", "Transformer, areas of 2 x 2")
    models += ("Transformer, areas of 3 x 3", "Transformer, areas of 3 x 3, Eq. 9")
    caption = {name: value("flickr8k", name, "CIDEr-D") for name in models}

    def verdict(hypothesis: str) -> str:
        p = value("study_findings", ("li2018_captions", hypothesis), "p, corrected")
        return f"{value('study_findings', ('li2018_captions', hypothesis), 'verdict')} (p = {p})"

    luong = ("global (dot)", *(f"global ({name}), input feeding" for name in ("concat", "dot", "general")))
    score = {name: value("study_luong2015", name, "BLEU") for name in luong}
    sharp = {name: value("study_luong2015", name, "entropy, bits") for name in luong}
    updates = value("study_luong2015", "global (dot)", "updates")
    chance = " and ".join(dict.fromkeys(value("study_luong2015", name, "p, corrected") for name in luong[1:]))

    lstm = {name: value("study_li2018_lstm", name, "BLEU") for name in ("regular attention", "areas, Eq. 3 and 4", "areas, Eq. 9")}
    letters = {name: value("study_li2018_lstm_characters", name, "BLEU") for name in ("regular attention", "areas, Eq. 3 and 4")}
    regular = "regular attention"
    french = {name: value("study_li2018_translation", ("Multi30k en-fr", name), "BLEU") for name in (regular, *step)}
    fed, named = "general, input feeding", ("general, input feeding", "additive", "Transformer", "Transformer, areas of 3")
    points = {(data, name): value("study_generated", (data, name), "AER") for data in ("letters backwards", "dates") for name in named}
    right = {name: value("study_generated", ("dates", name), "exact match") for name in (fed, "additive")}
    current, previous = "as in the table above", "looks before the last word is read, as published"
    words = {
        name: value("sentences_faithfulness", ("SST-2", name, "3"), "changed without")
        for name in ("structured self-attention", "max-pooling")
    }
    return [
        [
            "translation, recurrent",
            "attention, additive before the cell (Bahdanau)",
            f"{value('multi30k', 'no attention (fixed context)', 'BLEU')} → "
            f"{value('multi30k', 'Bahdanau: additive, before the cell', 'BLEU')} BLEU; on sentences of 19 words and more "
            f"{value('multi30k_length', '19+', 'no attention')} → {value('multi30k_length', '19+', 'Bahdanau')}",
            f"{value('multi30k', 'no attention (fixed context)', 'minutes')} → "
            f"{value('multi30k', 'Bahdanau: additive, before the cell', 'minutes')} minutes of training",
            "one seed, an interval by bootstrap that is far from 0",
            "[table](results.md#translation-multi30k-english-german)",
        ],
        [
            "translation, recurrent: the score",
            "one that is bounded (concat, additive) rather than a product of states as they are (dot, general)",
            f"concat {score['global (concat), input feeding']}, dot {score['global (dot), input feeding']}, general "
            f"{score['global (general), input feeding']} BLEU after {updates} updates; the products look at one token "
            f"({sharp['global (dot), input feeding']} and {sharp['global (general), input feeding']} bits of entropy, concat "
            f"{sharp['global (concat), input feeding']})",
            f"{value('study_luong2015', 'global (dot), input feeding', 'parameters')} → "
            f"{value('study_luong2015', 'global (concat), input feeding', 'parameters')} parameters",
            f"one seed; each against dot without input feeding ({score['global (dot)']}): p = {chance}",
            "[table](studies.md#scores-windows-input-feeding-luong-et-al-2015)",
        ],
        [
            "translation, LSTM with four heads",
            "areas of one or two tokens (Eq. 3 and 4)",
            f"{lstm['regular attention']} → {lstm['areas, Eq. 3 and 4']} BLEU; with learned keys {lstm['areas, Eq. 9']}; by characters "
            f"{letters['regular attention']} → {letters['areas, Eq. 3 and 4']}",
            "no parameters; with learned keys "
            f"{value('study_li2018_lstm', 'regular attention', 'parameters')} → {value('study_li2018_lstm', 'areas, Eq. 9', 'parameters')}",
            f"two seeds of 8 epochs, p = {value('study_li2018_lstm', 'areas, Eq. 3 and 4', 'p, corrected')} over them and the test "
            f"sentences; with learned keys {value('study_li2018_lstm', 'areas, Eq. 9', 'p, corrected')}; by characters one seed, p = "
            f"{value('study_li2018_lstm_characters', 'areas, Eq. 3 and 4', 'p, corrected')}",
            "[table](studies.md#areas-in-lstms-li-et-al-2018)",
        ],
        [
            "translation, Transformer",
            "ordinary attention; areas (Eq. 3 and 4) where you want to see spans",
            f"{seeds[0]} and {seeds[1]} BLEU with two seeds; areas {mean['areas, Eq. 3 and 4']} in the mean, Eq. 9 {mean['areas, Eq. 9']}; "
            f"to French {french[regular]}, {french['areas, Eq. 3 and 4']} and {french['areas, Eq. 9']}",
            f"a step {step['areas, Eq. 3 and 4']} times as long with areas, {step['areas, Eq. 9']} with Eq. 9; a search "
            f"{search['areas, Eq. 3 and 4']} and {search['areas, Eq. 9']} times",
            "two seeds of one model differ as much as the models do; to French one seed: no gain shown",
            "[table](results.md#transformers-on-multi30k), [French](studies.md#areas-in-transformers-li-et-al-2018), "
            "[steps](performance.md#a-whole-training-step), [searches](performance.md#a-search)",
        ],
        [
            "translation by characters",
            "areas with learned keys (Eq. 9)",
            f"{value('study_li2018_characters', 'regular attention', 'BLEU')} → "
            f"{value('study_li2018_characters', 'areas, Eq. 9', 'BLEU')} BLEU; without learned keys "
            f"{value('study_li2018_characters', 'areas, Eq. 3 and 4', 'BLEU')}",
            f"a step {step['areas, Eq. 9']} times as long, a search (of tokens) {search['areas, Eq. 9']} times",
            f"two seeds, p = {value('study_li2018_characters', 'areas, Eq. 9', 'p, corrected')} over them and the test sentences",
            "[table](studies.md#areas-in-transformers-li-et-al-2018)",
        ],
        [
            "translation, crossed co-attention",
            "only for two different inputs",
            f"{mean['crossed co-attention']} BLEU in the mean of two seeds, the ordinary {round(sum(seeds) / 2, 2)}",
            f"{crossed:.1f} times the parameters, {longer:.1f} times the step",
            "within the spread of seeds",
            "[table](results.md#transformers-on-multi30k), [steps](performance.md#over-the-length-of-a-sentence)",
        ],
        [
            "links between source and target",
            "a recurrent decoder with additive attention, or general with input feeding; areas where they need not point",
            f"alignment error on letters backwards: general {points['letters backwards', fed]} %, additive "
            f"{points['letters backwards', 'additive']}, Transformer {points['letters backwards', 'Transformer']}, with areas "
            f"{points['letters backwards', 'Transformer, areas of 3']}; on dates {points['dates', fed]}, {points['dates', 'additive']}, "
            f"{points['dates', 'Transformer']}, {points['dates', 'Transformer, areas of 3']}",
            f"lines that are right: general {right[fed]}, additive {right['additive']} % of the dates",
            "two seeds, 1,000 lines of generated sets whose links are known",
            "[table](studies.md#generated-sets-whose-alignments-are-known)",
        ],
        [
            "captions that point",
            "soft attention that looks after the last word was read (`model.query_state=current`)",
            f"points in {value('scenes_why', current, 'pointing')} % of words, before the word in "
            f"{value('scenes_why', previous, 'pointing')} %; hard attention in {value('scenes', hard, 'pointing')} %",
            f"{value('scenes', soft, 'minutes')} minutes on one core; hard {value('scenes', hard, 'minutes')}",
            "1,000 generated scenes, one seed",
            "[table](captioning.md#does-attention-point)",
        ],
        [
            "captions of photographs",
            "a Transformer that looks at cells; soft rather than hard attention in a recurrent one",
            f"CIDEr-D {caption['Transformer']}, soft {caption[soft]}, hard {caption['Show, Attend and Tell, hard']}; areas of 2 x 2 "
            f"{caption['Transformer, areas of 2 x 2']}, of 3 x 3 {caption['Transformer, areas of 3 x 3']}, "
            f"of 3 x 3 with learned keys {caption['Transformer, areas of 3 x 3, Eq. 9']}",
            f"{value('flickr8k', 'Transformer', 'minutes')} minutes of training beside other work, with learned keys "
            f"{value('flickr8k', 'Transformer, areas of 3 x 3, Eq. 9', 'minutes')}, mostly with two threads",
            f"one seed; over the test images {verdict('areas of 2 x 2 are better than cells')} for areas of 2 x 2, "
            f"{verdict('areas of 3 x 3 are better than cells')} for 3 x 3, "
            f"{verdict('areas of 3 x 3 with learned keys are better than cells')} for learned keys",
            "[table](captioning.md#flickr8k), [hypotheses](studies.md#which-of-their-claims-hold)",
        ],
        [
            "labels of sentences",
            "max-pooling; structured self-attention where you have to show the words",
            f"SST-2 {value('sentences', ('SST-2', 'max-pooling'), 'accuracy')} and "
            f"{value('sentences', ('SST-2', 'structured self-attention'), 'accuracy')} %; without the 3 words looked at most the label's "
            f"probability moves by {words['max-pooling']} and {words['structured self-attention']}",
            f"{value('sentences', ('SST-2', 'max-pooling'), 'minutes a run')} and "
            f"{value('sentences', ('SST-2', 'structured self-attention'), 'minutes a run')} minutes a run",
            "three seeds on four sets; on none is structured attention ahead of both poolings; trained again max-pooling had "
            f"{value('study_lin2017', ('SST-2', 'max-pooling'), 'accuracy')} on SST-2, 4 hops "
            f"{value('study_lin2017', ('SST-2', '4 hops'), 'accuracy')}",
            "[table](sentences.md#what-it-looked-at), [study](studies.md#hops-and-their-penalty-lin-et-al-2017)",
        ],
        [
            "hops",
            "no penalty",
            f"accuracy {value('sentences_hops', ('SST-2', '0'), 'accuracy')} without, "
            f"{value('sentences_hops', ('SST-2', '1'), 'accuracy')} with it, though "
            f"hops then look at different words (cosine {value('sentences_hops', ('SST-2', '1'), 'cosine')})",
            "nothing",
            "three seeds, one set",
            "[table](sentences.md#what-it-looked-at)",
        ],
        [
            "pairs of sentences",
            "one shared reader and max-pooling",
            f"SICK {value('sentences', ('SICK', 'max-pooling'), 'accuracy')} %, structured "
            f"{value('sentences', ('SICK', 'structured self-attention'), 'accuracy')} %, co-attention "
            f"{value('sentences', ('SICK, co-attention', 'structured self-attention'), 'accuracy')} %",
            f"{value('sentences', ('SICK', 'max-pooling'), 'minutes a run')} minutes a run",
            "three seeds, 4,500 pairs",
            "[table](sentences.md#what-it-looked-at)",
        ],
        [
            "language models of 2 million parameters",
            "none, or plain attention where texts come in groups",
            f"perplexity on sentences {value('language', ('Multi30k, English', 'none'), 'perplexity, running')} without, key-value "
            f"{value('language', ('Multi30k, English', 'key-value'), 'perplexity, running')}; on five captions of an image after another "
            f"{value('language', ('Flickr8k captions', 'none'), 'perplexity, running')} without, plain "
            f"{value('language', ('Flickr8k captions', 'plain'), 'perplexity, running')}",
            f"{value('language', ('Multi30k, English', 'none'), 'minutes a run')} → "
            f"{value('language', ('Multi30k, English', 'plain'), 'minutes a run')} minutes",
            "three seeds",
            "[table](language.md#what-is-counted)",
        ],
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    note = "`python benchmarks/which_attention.py`: every figure is looked up in the table that its last column names."
    write(RESULTS / "which_attention.json", ["for", "use", "it buys", "it costs", "how sure", "from"], rows(), note)


if __name__ == "__main__":
    main()
