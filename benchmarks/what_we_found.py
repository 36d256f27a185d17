"""The table of docs/what-we-found.md: what the studies say of the papers' claims, each number from the table that its row links.

    python benchmarks/what_we_found.py
    python benchmarks/fill_tables.py

Writes what_we_found.json from the other files of docs/results. A row that is no longer there is an error, and so is a finding that rests
on a verdict the studies no longer have, or on a difference that turned.
"""

from __future__ import annotations

import statistics

from area_gains import perplexities
from harness import RESULTS, options, read, write
from kept_tables import COUNTS, NOT_SHOWN, REFUTED, SHOWN, evidence, number, seeds, value

from regard.study.findings import SEEDS

COLUMNS = ["finding", "measured", "evidence"]
COST = 0.3
"""BLEU that counts as none."""
CHOSEN_FROM = 30
"""Checkpoints among which validation chooses, as the study states."""
# Sections of docs/studies.md.
SECTIONS = {
    "generated": "generated-sets-with-known-alignments",
    "daniluk2017": "attention-to-previous-states-daniluk-et-al-2017",
    "r_drop": "r-drop-on-few-pairs-liang-et-al-2021",
    "bahdanau2015_long": "attention-and-no-attention-bahdanau-et-al-2015",
    "luong2015_scores": "scores-windows-input-feeding-luong-et-al-2015",
    "lin2017_entailment": "hops-and-their-penalty-lin-et-al-2017",
    "li2018_small": "do-small-models-gain-most",
    "li2019_plateau": "choosing-among-thirty-checkpoints",
    "scene_sentences": "two-inputs-scenes-with-a-sentence",
    "two_inputs": "two-inputs-two-languages",
    "image_german": "two-inputs-a-sentence-and-its-photograph",
}


def gain(study: str, hypothesis: str, data: str, unit: str) -> str:
    """Return the gain of a hypothesis with its interval; of perplexity, which falls where a model gains, the change."""
    row = (study, hypothesis, data)
    found = float(value("study_findings", row, "measured gain"))
    interval = str(value("study_findings", row, "95 % interval")).split(" to ")
    if unit == "perplexity":
        found, interval = -found, [f"{-float(end):+.2f}" for end in reversed(interval)]
    return f"{found:+.1f} {unit} [{', '.join(interval)}]"


def ahead(more: float, less: float, what: str) -> tuple[float, float]:
    """Return both figures.

    Raises:
        SystemExit: the first is not the larger one; names what they measure.
    """
    if more <= less:
        raise SystemExit(f"{what}: {more} is not above {less}, which a finding says")
    return more, less


def p_of(table: str, row: str | tuple[str, ...]) -> float:
    """Return the corrected p of a row; of "< 0.001" its limit."""
    return float(str(value(table, row, "p, corrected")).removeprefix("< "))


def verdicts() -> list[list[str]]:
    """Return the findings that rest on a hypothesis of a study."""
    attends, crossed = "attention is better than none", "crossed co-attention is better than the Transformer"
    on_all = f"{attends}, trained on all"
    hops, fusion = "several hops are better than one", "gated fusion is better than features"
    split = "key-value attention is better than plain attention"
    scaled = "scaled dot is better than dot"
    evidence("luong2015_scores_rate", scaled, "multi30k", SHOWN)  # the second rate
    found = [
        ("Attention helps write letters backwards.", "generated", attends, "reverse", "points", SHOWN),
        ("And translate joined captions.", "bahdanau2015_long", on_all, "multi30k_long", "BLEU", SHOWN),
        ("In a GRU, at two learning rates, scaled dot beats dot.", "luong2015_scores", scaled, "multi30k", "BLEU", SHOWN),
        ("On SICK 16 hops, with more parameters, beat one.", "lin2017_entailment", hops, "sick", "points", SHOWN),
        ("On SICK, gated fusion loses to `[p; h; |p - h|; p * h]`.", "lin2017_entailment", fusion, "sick", "points", REFUTED),
        ("On unrelated sentences key-value attention trails plain attention.", "daniluk2017", split, "multi30k", "perplexity", REFUTED),
        ("Crossed co-attention: no gain shown.", "li2019_plateau", crossed, "multi30k", "BLEU", NOT_SHOWN),
    ]
    return [
        [says, gain(study, hypothesis, data, unit), f"[{evidence(study, hypothesis, data, kinds)}](studies.md#{SECTIONS[study]})"]
        for says, study, hypothesis, data, unit, kinds in found
    ]


def features() -> list[str]:
    """Return the finding on area features by characters: shown in one of two LSTMs and in one of two Transformers, whose standard
    attention is behind the other's."""
    learned, data = "area features (Eq. 9) are better than single positions", "characters"
    evidence("li2018_small", f"{learned}, Transformer Tiny", data, NOT_SHOWN)
    evidence("li2018_small", f"{learned}, LSTM 128, 4 heads", data, NOT_SHOWN)
    wide, head = f"{learned}, Transformer Small", f"{learned}, LSTM 128, 1 head"
    evidence("li2018_small", head, data, SHOWN)
    standard = [f"Transformer {size}, single positions" for size in ("Tiny", "Small")]
    scores = (number("study_li2018_small", ("Multi30k en-de, characters", model), "BLEU") for model in standard)
    ahead(*scores, "BLEU by characters of Transformer Tiny, beside the Small one")
    return [
        "Area features, characters: gain shown in an LSTM with one unscaled head and a Transformer behind a smaller one.",
        f"{gain('li2018_small', head, data, 'BLEU')}, {gain('li2018_small', wide, data, 'BLEU')}",
        f"[{evidence('li2018_small', wide, data, SHOWN)}](studies.md#{SECTIONS['li2018_small']})",
    ]


def r_drop() -> list[str]:
    """Return the finding on R-Drop: less BLEU, and less perplexity with every seed."""
    row = ("r_drop", "R-Drop is better than one pass", "multi30k_3000")
    variants = perplexities("r_drop", "multi30k_3000")
    ahead(min(variants["plain"]), max(variants["r_drop"]), "perplexity without R-Drop")
    twice, once = (statistics.mean(variants[name]) for name in ("r_drop", "plain"))
    return [
        "R-Drop loses BLEU on 3,000 pairs at equal epochs, not perplexity.",
        f"{gain(*row, 'BLEU')}; perplexity {twice:.1f}, {once:.1f} without",
        f"[{evidence(*row, REFUTED)}](studies.md#{SECTIONS['r_drop']})",
    ]


def hard() -> list[str]:
    """Return the finding on the soft start of hard attention to images: a difference without it, and none where the rewards differ."""
    row = ("hard: reward of each step, weight 0.3, no soft start", "best cell")
    kept = p_of("hard_attention", ("hard: reward of the sentence, weight 1, soft start", "best cell"))
    ahead(kept, 0.05, "p of the reward of the sentence with a soft start, beside its limit")
    behind = value("hard_attention", row, "difference")
    ahead(0.05, p_of("hard_attention", row), "the limit of p, beside that of hard attention without a soft start")
    if value("hard_attention", row, "seeds") < SEEDS:
        raise SystemExit(f"hard_attention.json: a finding needs {SEEDS} seeds")
    apart = str(value("hard_attention", row, "95 % interval")).replace(" to ", ", ")
    updates = read(RESULTS / "hard_attention.json")["note"].partition(" updates")[0].split()[-1]
    return [
        f"Within {updates} updates hard attention learned only after a soft start.",
        f"{behind:+.0f} points of true captions without it [{apart}]",
        f"[{seeds('hard_attention', row)}](studies.md#hard-attention-as-published)",
    ]


def curves() -> list[str]:
    """Return the finding on the loss of the crossed network."""
    table = read(RESULTS / "study_li2019_plateau_loss.json")
    apart = {row[1]: [float(one) for one in row[-1].split(", ")] for row in table["rows"]}
    last = [seen for count, seen in apart.items() if count > max(apart) - CHOSEN_FROM]
    behind = sum(min(seen) > 0 for seen in last)
    ahead(behind, CHOSEN_FROM / 2, "evaluations at which the loss of the crossed network is higher")
    return [
        "Its validation loss exceeded the Transformer's.",
        f"with each seed at {behind} of the last {len(last)} evaluations, up to {max(map(max, last)):.2f} nats",
        f"[{seeds('study_li2019_plateau', 'crossed co-attention')}](studies.md#{SECTIONS['li2019_plateau']})",
    ]


def areas() -> list[str]:
    """Return the finding on whether areas grow with an object."""
    keys = "mean keys, summed values (Eq. 3, 4)"
    larger, apart = number("area_sizes", keys, "larger less smaller"), str(value("area_sizes", keys, "95 % interval"))
    ahead(0.05, p_of("area_sizes", keys), "the limit of p, beside that of the size of areas")
    return [
        "Areas of mean keys grow a little with the object.",
        f"{larger:+.1f} cells for the larger object [{apart.replace(' to ', ', ')}]",
        f"[{seeds('area_sizes', keys)}](studies.md#do-areas-choose-their-size)",
    ]


def pointing() -> list[str]:
    """Return the finding on a head that learned links."""
    areas = "Transformer, areas of 3"
    errors = (number("pointing", ("reverse", areas, kind), "alignment error, %") for kind in ("none", "known"))
    untaught, taught = ahead(*errors, "alignment error without links")
    own = [("Transformer", kind) for kind in ("none", "of the recurrent model")]
    apart = [number("pointing_multi30k", row, "alignment error against the recurrent model, %") for row in own]
    ahead(*apart, "alignment error on Multi30k without links")
    bleu = [number("pointing_multi30k", row, "BLEU") for row in own]
    ahead(bleu[1] + COST, bleu[0], f"BLEU with guided alignment, and {COST}")
    return [
        "One head can be taught to point.",
        f"letters backwards, areas: alignment error {untaught:.1f} % without links, {taught:.2f} % with; Multi30k, against the links' "
        f"model: {apart[0]:.0f} and {apart[1]:.0f} %, BLEU {bleu[0]:.1f} and {bleu[1]:.1f}",
        f"[{seeds('pointing', *(('reverse', areas, kind) for kind in ('none', 'known')))}](translation.md#guided-alignment)",
    ]


def crossed_pointing() -> list[str]:
    """Return the finding on where a crossed network looks at an image."""
    row = ("scenes with a sentence", "crossed")
    ways = ("pointing, co-attention followed", "pointing")
    ahead(*(number("scene_sentences", row, way) for way in ways), "following")
    followed, decoder = (value("scene_sentences", row, way) for way in ways)
    return [
        "On generated scenes, a crossed network reads the image in its encoder.",
        f"{decoder} % of words at their object by the decoder, {followed} % through the encoder",
        f"[{seeds('scene_sentences', row)}](studies.md#{SECTIONS['scene_sentences']})",
    ]


def second_inputs() -> list[list[str]]:
    """Return the findings on a second language and on a photograph."""
    data, hidden = "Multi30k, English and French to German", "40% hidden"
    two, one = ahead(*(number("two_inputs", (data, name), hidden) for name in ("both in one sequence", "English alone")), "two languages")
    evidence("image_german", "two encoders in series with the photograph are better than English alone", "image_en", NOT_SHOWN)
    images = ("Multi30k in Flickr8k, photograph and English to German", "two encoders, serial")
    own, other = (number("image_german", (*images, kind), "BLEU") for kind in ("its own", "another image"))
    return [
        [
            "A second language helps with missing words.",
            f"BLEU {two:.1f} with French, {one:.1f} without, {hidden.partition('%')[0]} % of words hidden",
            f"[{seeds('two_inputs', (data, 'both in one sequence'), (data, 'English alone'))}](studies.md#{SECTIONS['two_inputs']})",
        ],
        [
            "A photograph is not shown to help translation.",
            f"BLEU {own:.1f} with it, {other:.1f} with another",
            f"[{seeds('image_german', (*images, 'its own'))}](studies.md#{SECTIONS['image_german']})",
        ],
    ]


def language() -> list[str]:
    """Return the finding on language models."""
    texts, ways = ("Multi30k, English", "Flickr8k captions", "Flickr8k captions, shuffled"), ("continuous", "separate")
    apart = {
        (text, way): number("language", (text, "plain"), f"perplexity, {way}") - number("language", (text, "none"), f"perplexity, {way}")
        for text in texts
        for way in ways
    }
    (alone, grouped, mixed), one = (apart[text, ways[0]] for text in texts), apart[texts[1], ways[1]]
    ahead(one, 0.0, "perplexity with attention over each caption alone")
    ahead(alone, 0.0, "perplexity with attention over unrelated sentences")
    ahead(mixed, 0.0, "perplexity with attention over captions in a random order")
    ahead(0.0, grouped, "perplexity with attention over groups of captions")
    return [
        "Plain attention helped a language model of captions in groups.",
        f"{grouped:+.1f} perplexity; {one:+.1f} caption by caption; {mixed:+.1f} in a random order; {alone:+.1f} on unrelated sentences",
        f"[{seeds('language', *((text, kind) for text in texts for kind in ('plain', 'none')))}](language.md#results)",
    ]


def explanations() -> list[str]:
    """Return the finding on weights as explanations."""
    measured, every = read(RESULTS / "explain_best.json"), read(RESULTS / "explain.json")
    seen, removed, known = (
        [row[measured["columns"].index(name)] for row in measured["rows"]] for name in ("seeds", "most comprehensive method", "best method")
    )
    pointed, count = [method for method in known if method is not None], removed.count("weights")
    others = ("data", "model", "figure", "random order", "greedy leave-one-out")
    places = [place for place, name in enumerate(every["columns"]) if name not in others]
    compared = [sum(row[place] is not None for place in places) for row in every["rows"] if row[2] == "comprehensiveness"]
    ahead(1, count, "one model, beside those whose weights explain best")
    return [
        "By removing inputs, weights explain no model best.",
        f"the best of {min(compared)} to {max(compared)} methods in {count} of {len(removed)} models; by known inputs in "
        f"{pointed.count('weights')} of {len(pointed)}",
        f"[{COUNTS[min(seen)]} seeds, not tested](explain.md#results)",
    ]


def rows() -> list[list[str]]:
    """Return the table: finding, figures, and a link to its evidence."""
    return [
        *verdicts(),
        curves(),  # "its" is that of the row before
        r_drop(),
        features(),
        hard(),
        areas(),
        pointing(),
        crossed_pointing(),
        *second_inputs(),
        language(),
        explanations(),
    ]


def main() -> None:
    """Write the table."""
    given = options(__doc__, out=RESULTS / "what_we_found.json").parse_args()
    note = "By `python benchmarks/what_we_found.py`. Brackets: 95 % intervals, uncorrected."
    write(given.out, COLUMNS, rows(), note)


if __name__ == "__main__":
    main()
