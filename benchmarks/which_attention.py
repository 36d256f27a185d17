"""The table of docs/which-attention.md: what to use when, each number from the table it links.

    python benchmarks/which_attention.py
    python benchmarks/fill_tables.py

Writes which_attention.json from the other files of docs/results. A row or a column that is no longer there is an error, and so is a
recommendation that another row of its table is ahead of, or that rests on a verdict the studies no longer have.
"""

from __future__ import annotations

from statistics import mean

from harness import RESULTS, ROOT, options, read, write
from kept_tables import COUNTS, NOT_SHOWN, REFUTED, SHOWN, evidence, lead, number, seeds, unshown, value, within_spread
from two_inputs import SHARES

from regard.config.study import load_study
from regard.metrics.seeds import LEVEL

KEPT = RESULTS / "studies" / "generated" / "results"
LABELLED = ("SST-2", "SST-5", "TREC")
REGULAR, MEANS, FEATURES, LEARNED = "regular attention", "areas, Eq. 3 and 4", "areas, Eq. 9", "area features (Eq. 9)"
HARD_OWN = ("hard: reward of each step, weight 0.3, soft start", "best cell")


def rows() -> list[list[str]]:
    """Return the table: use case, recommendation, one number, and a link to its evidence."""
    return [
        *recurrent_translation(),
        *transformer_translation(),
        *two_languages(),
        *pictures(),
        alignments(),
        *captions(),
        *sentences(),
        *language(),
    ]


def recurrent_translation() -> list[list[str]]:
    """Return the rows on recurrent translation models."""
    attends = [
        ("luong2015_scores", "location attention is better than none", "multi30k"),
        ("bahdanau2015_long", "attention is better than none, trained on all", "multi30k_long"),
    ]
    attending, _ = (evidence(*row, SHOWN) for row in attends)
    location, additive = (float(value("study_findings", row, "measured gain")) for row in attends)
    areas = ("li2018_small", "areas are better than single positions, LSTM 256, 4 heads", "tokens")
    interval, shown = unshown(*areas)
    others = [
        (f"areas are better than single positions, LSTM {size}, 4 heads", data) for size in (128, 256) for data in ("tokens", "characters")
    ]
    all_gains = [float(value("study_findings", ("li2018_small", *other), "measured gain")) for other in others]
    models = [("Multi30k en-de, characters", f"LSTM 128, 1 head, {kind}") for kind in ("single positions", FEATURES)]
    fewer, larger = (int(str(value("study_li2018_small", row, "parameters")).replace(",", "")) for row in models)
    more = larger / fewer - 1
    small = [("li2018_small", f"{keys} are better than single positions, LSTM 128, 1 head", "characters") for keys in (LEARNED, "areas")]
    (held, _), gains = (evidence(*row, SHOWN) for row in small), [float(value("study_findings", row, "measured gain")) for row in small]
    return [
        [
            "translation, recurrent",
            "attention rather than none",
            f"{location:+.1f} BLEU by location attention over none, {additive:+.1f} by an additive score on joined captions",
            f"[{attending}](studies.md#verdicts)",
        ],
        luong_scores(),
        [
            "translation, LSTM with four heads",
            "standard attention; areas are not shown to gain",
            f"{float(value('study_findings', areas, 'measured gain')):+.2f} BLEU by mean areas, 256 cells, sub-words, 95 % interval "
            f"{interval}; {min(all_gains):+.2f} to {max(all_gains):+.2f} in {COUNTS[len(all_gains)]} models",
            f"[{shown}](studies.md#do-small-models-gain-most)",
        ],
        [
            "translation, LSTM of 128 cells with one head, characters",
            f"{LEARNED}, which also learn keys, with {more:.0%} more parameters",
            f"{gains[0]:+.2f} BLEU by area features over a dot score without a scale (see above), {gains[1]:+.2f} by mean areas",
            f"[{held}](studies.md#do-small-models-gain-most)",
        ],
    ]


def luong_scores() -> list[str]:
    """Return the row on scores after the cell: those of the authors that saturate fall behind in two studies of different settings."""
    first, second = "study_luong2015", "study_luong2015_scores"
    ahead = ["scaled dot", "scaled dot, input feeding", "concat, input feeding"]
    rest = {
        table: [row[0] for row in read(RESULTS / f"{table}.json")["rows"] if row[0] not in (*ahead, "no attention")]
        for table in (first, second)
    }
    others = [name for name in rest[first] if "concat" not in name]
    once = lead(first, "global (concat), input feeding", sorted(others, key=lambda name: -number(first, name, "BLEU")), "BLEU")
    best = max(rest[second], key=lambda name: number(second, name, "BLEU"))
    again = min(lead(second, name, [best], "BLEU") for name in ahead)
    return [
        "translation, recurrent, query after the cell (Luong)",
        "scaled dot or concat; the scores dot and general saturate",
        f"{once:+.1f} BLEU by concat over all others in one study, {again:+.1f} by concat and scaled dot in another",
        f"[{seeds(first, *rest[first])} and {seeds(second, *ahead, best)}](studies.md#scores-windows-input-feeding-luong-et-al-2015)",
    ]


def transformer_translation() -> list[list[str]]:
    """Return the rows on Transformers that translate."""
    table, means = "multi30k_transformer", "areas are better than single positions"
    learned = f"{LEARNED} are better than single positions"
    for hypothesis in (means, learned):
        for data in ("multi30k", "multi30k_fr"):
            evidence("li2018_translation", hypothesis, data, NOT_SHOWN)
    wide, several = unshown("li2019_plateau", "crossed co-attention is better than the Transformer", "multi30k")
    areas = within_spread(table, MEANS, "Transformer", "mean")
    three, not_shown = unshown("li2018_tagged", means, "multi30k_tagged")
    refuted = evidence("li2018_tagged", learned, "multi30k_tagged", REFUTED)
    behind = {one: value("study_li2018_tagged", one, "difference from regular attention") for one in (MEANS, FEATURES)}
    tiny = ("li2018_small", f"{learned}, Transformer Tiny", "characters")
    interval, shown = unshown(*tiny)
    ahead = float(value("study_findings", tiny, "measured gain"))
    deep = ("li2018_characters", learned, "multi30k")
    deeper, twice = float(value("study_findings", deep, "measured gain")), evidence(*deep, NOT_SHOWN)
    small = ("li2018_small", f"{learned}, Transformer Small", "characters")
    held, gained = evidence(*small, SHOWN), float(value("study_findings", small, "measured gain"))
    widths = [
        ("Multi30k en-de, characters", f"Transformer {size}, {what}") for size, what in (("Small", FEATURES), ("Tiny", "single positions"))
    ]
    lead("study_li2018_small", widths[0], widths[1:], "BLEU")
    best, few = number("study_li2018_small", widths[0], "BLEU"), seeds("study_li2018_small_rate", "single positions")
    standard = [(widths[0][0], f"Transformer {size}, single positions") for size in ("Tiny", "Small")]
    lead("study_li2018_small", standard[0], standard[1:], "BLEU")
    slower, narrow = number("study_li2018_small_rate", "single positions", "BLEU"), number("study_li2018_small", standard[0], "BLEU")
    if slower <= narrow:
        raise SystemExit("study_li2018_small_rate.json: standard attention is not better at the lower rate, as the page says")
    return [
        [
            "translation, Transformer, sub-words",
            "standard attention; mean areas are not shown to gain, area features (Eq. 9) lose",
            f"to three languages {behind[FEATURES]} BLEU by area features, {behind[MEANS]} by mean areas, 95 % interval {three}; "
            f"to German {areas:+.2f} by mean areas, within the spread of seeds",
            f"[{refuted}; {not_shown}](studies.md#one-model-for-three-languages), "
            f"[{seeds(table, 'Transformer', MEANS)}](results.md#transformers-on-multi30k)",
        ],
        [
            "translation, Transformer, characters",
            "256 wide, area features (Eq. 9), at a learning rate at which standard attention has less BLEU than 128 wide; "
            "128 wide, standard attention: area features are not shown to gain BLEU",
            f"{gained:+.2f} BLEU by area features 256 wide; {ahead:+.2f} 128 wide, 95 % interval {interval}, {deeper:+.2f} with more "
            f"layers ({twice}); 256 wide, standard attention has {slower:.1f} BLEU at a lower rate ({few}), area features {best:.1f} at "
            "this one",
            f"[{held}; {shown}](studies.md#do-small-models-gain-most)",
        ],
        [
            "translation, one encoder or two crossed ones",
            "one encoder; crossed co-attention is not shown to gain",
            f"{value('study_li2019_plateau', 'crossed co-attention', 'difference from Transformer')} BLEU by crossed co-attention, "
            f"95 % interval {wide}",
            f"[{several}](studies.md#choosing-among-thirty-checkpoints)",
        ],
    ]


def two_languages() -> list[list[str]]:
    """Return the rows on a sentence in two languages."""
    data, alone, joined = "Multi30k, English and French to German", "English alone", "both in one sequence"
    table = read(RESULTS / "study_two_inputs.json")
    names = [row[1] for row in table["rows"] if row[0] == data]
    for row in table["rows"]:
        gained, p = (str(value("study_two_inputs", row[:2], column)) for column in ("difference from English alone", "p, corrected"))
        if row[1] != alone and gained.startswith("+") and (p.startswith("<") or float(p.split()[0]) < LEVEL):
            raise SystemExit(f"study_two_inputs.json: {row[0]}, {row[1]} gains {gained}, but the page says that none is shown to")
    best = max((name for name in names if name != alone), key=lambda name: number("study_two_inputs", (data, name), "BLEU"))
    gain, interval = (value("study_two_inputs", (data, best), column) for column in ("difference from English alone", "95 % interval"))
    for share in SHARES:
        lead("two_inputs", (data, joined), [(data, name) for name in names if name != joined], f"{share:.0%} hidden")
    hidden = f"{SHARES[-1]:.0%} hidden"
    saved = lead("two_inputs", (data, joined), [(data, alone)], hidden)
    evidence = "[{}](studies.md#two-inputs-two-languages)"
    return [
        [
            "translation of a sentence in two languages",
            "English alone; French or Czech beside it is not shown to gain",
            f"{gain} BLEU by {best}, the best of {len(names) - 1}, 95 % interval {interval}",
            evidence.format(seeds("study_two_inputs", (data, alone), (data, best))),
        ],
        [
            "the same, with words of one language missing",
            "both in one sequence (`model.second.kind=joined`)",
            f"{saved:+.1f} BLEU over the damaged sentence alone, {hidden}",
            evidence.format(seeds("two_inputs", (data, alone), (data, joined))),
        ],
    ]


def pictures() -> list[list[str]]:
    """Return the rows on a sentence and a picture."""
    evidence("image_german", "two encoders in series with the photograph are better than English alone", "image_en", NOT_SHOWN)
    row = ("Multi30k in Flickr8k, photograph and English to German", "two encoders, serial")
    loss, interval = (value("study_image_german", row[1], column) for column in ("difference from English alone", "95 % interval"))
    return [
        both_needed(),
        [
            "translation of a photograph's description, 7,000 pairs",
            "the sentence alone; the photograph is not shown to help",
            f"{loss} BLEU by two encoders, 95 % interval {interval}",
            f"[{seeds('study_image_german', 'English alone', row[1])}](studies.md#two-inputs-a-sentence-and-its-photograph)",
        ],
    ]


def both_needed() -> list[str]:
    """Return the row on a sentence and a picture that complete each other."""
    data, own = "scenes with a sentence", "two encoders, parallel"
    evidence("scene_sentences", "the picture is needed", "both", SHOWN)
    for hypothesis in ("crossing is better than joining", "crossing is better than two encoders in series"):
        evidence("scene_sentences", hypothesis, "both", NOT_SHOWN)
    others = ["crossed", "both in one sequence", *(f"two encoders, {kind}" for kind in ("serial", "flat", "hierarchical"))]
    lead("study_scene_sentences", own, others, "exact match")
    others.sort(key=lambda name: -number("scene_sentences", (data, name), "pointing"))
    points = lead("scene_sentences", (data, own), [(data, other) for other in others], "pointing")
    return [
        "a sentence and a picture, neither enough alone",
        "two encoders, parallel (`model.second.kind=parallel`); crossing is not shown to gain, and its decoder points less often",
        f"{points:+.0f} points over {others[0]}, the next in how often the decoder looks at the object",
        f"[{seeds('scene_sentences', (data, own), (data, others[0]))}, generated scenes, not tested]"
        "(studies.md#two-inputs-scenes-with-a-sentence)",
    ]


def alignments() -> list[str]:
    """Return the row on alignments."""
    own, sets = "general, input feeding", ("letters backwards", "letters in order", "dates")
    table = read(RESULTS / "study_generated.json")
    names = [row[1] for row in table["rows"] if row[0] == sets[0] and row[1] != "no attention"]
    errors = {name: mean([number("study_generated", (data, name), "AER") for data in sets]) for name in names}
    best = min(errors, key=lambda name: errors[name])
    if best != own:
        raise SystemExit(f"study_generated.json: {own} is recommended for alignments, but {best} has the lowest mean AER: {errors}")
    study = load_study(ROOT / "studies" / "generated.yaml", data="data")
    by_seed = {
        str(variant.title): [mean(read(KEPT / f"{data}-{key}-{seed}.json")["scores"]["AER"] for data in study.data) for seed in study.seeds]
        for key, variant in study.variants.items()
        if variant.title in names
    }
    near = [name for name in names if name != own and min(by_seed[name]) <= max(by_seed[own])]
    if near != ["dot, after the cell"]:
        raise SystemExit(f"study_generated.json: within the spread of {own} are {near}, but the page names dot alone")
    return [
        "alignments between source and target",
        "a head that [learned links](translation.md#guided-alignment); without any, on generated sets, a recurrent dot or general score "
        "(both saturate in translation, see above)",
        f"{errors[near[0]]:.1f} % alignment error by dot, {errors[own]:.1f} % by general with input feeding, mean of {COUNTS[len(sets)]} "
        "sets, within the spread of seeds; all others are above",
        f"[{seeds('study_generated', *((data, own) for data in sets))}](studies.md#generated-sets-with-known-alignments)",
    ]


def captions() -> list[list[str]]:
    """Return the rows on captioning."""
    soft = "Show, Attend and Tell, soft"
    pointing = value("scenes", soft, "pointing")
    within_spread("hard_attention", ("soft", "weights"), HARD_OWN, "pointing, %")
    larger = "Show, Attend and Tell, areas of 2 x 2"
    areas, count = number("scenes", larger, "pointing"), int(value("scenes", larger, "seeds"))
    if count > 1 or max(number("scenes", row[0], "pointing") for row in read(RESULTS / "scenes.json")["rows"]) > areas:
        raise SystemExit("scenes.json: soft attention is recommended to point, with one run of areas of 2 x 2 ahead of all")
    better = number("flickr8k", "Transformer", "CIDEr-D") - number("flickr8k", soft, "CIDEr-D")
    for areas_of in ("areas of 2 x 2", "areas of 3 x 3", "area features (Eq. 9) of 3 x 3"):
        evidence("li2018_captions", f"{areas_of} are better than cells", "flickr8k", NOT_SHOWN + REFUTED)
    over_hard = lead("study_xu2015", "soft", ["hard"], "BLEU-4")
    shown = evidence("xu2015", "hard attention is better than soft", "flickr8k", REFUTED)
    return [
        [
            "captions, attention that points",
            "soft attention; hard attention that starts soft points as often within the spread of seeds; "
            "areas of 2 x 2 point more often in one run of an earlier version",
            f"{pointing} % of words point at their object, {areas:.1f} % in that run",
            f"[{seeds('scenes', soft)}, generated scenes](captioning.md#attention-accuracy-on-scenes)",
        ],
        [
            "captions of photographs",
            "a recurrent decoder or a Transformer, not compared over seeds; areas are not shown to gain",
            f"{better:+.1f} CIDEr-D by the Transformer, which has more parameters",
            "[one seed](captioning.md#flickr8k)",
        ],
        [
            "captions, recurrent",
            "soft rather than hard attention",
            f"{over_hard:+.3f} BLEU-4 over hard attention",
            f"[{shown}](studies.md#soft-and-hard-attention-to-images-xu-et-al-2015)",
        ],
    ]


def sentences() -> list[list[str]]:
    """Return the rows on classification and entailment."""
    hops, most, average = "structured self-attention", "max-pooling", "mean-pooling"
    leads = [within_spread("sentences", (data, hops), (data, average), "accuracy") for data in LABELLED]
    unpenalised = within_spread("sentences_hops", ("SST-2", "0"), ("SST-2", "1"), "accuracy")
    penalised, more_hops = (
        float(value("study_findings", row, "measured gain"))
        for row in (("lin2017", "the penalty helps", "sst2"), ("lin2017_entailment", "hops are better than max-pooling", "sick"))
    )
    for data in ("sst2", "trec"):
        evidence("lin2017", "the penalty helps", data, NOT_SHOWN)
    lead("sentences", ("SICK", most), [("SICK", hops), ("SICK", average), ("SICK, co-attention", most)], "accuracy")
    pairs = within_spread("sentences", ("SICK", most), ("SICK", hops), "accuracy")
    evidence("lin2017_entailment", "hops are better than max-pooling", "sick", NOT_SHOWN)
    fusion = lead("study_lin2017_entailment", "4 hops", ["4 hops, gated fusion"], "accuracy")
    shown = evidence("lin2017_entailment", "gated fusion is better than features", "sick", REFUTED)
    other = "features are better than gated fusion"
    for data in ("sick", "snli_9000"):
        evidence("entailment", other, data, NOT_SHOWN)
    again, more = (float(value("study_findings", ("entailment", other, data), "measured gain")) for data in ("sick", "snli_9000"))
    crossed = "crossed readers are better than one shared Transformer"
    for data in ("sick", "snli_2000", "snli_4000"):
        evidence("entailment", crossed, data, NOT_SHOWN)
    interval, unseen = unshown("entailment", crossed, "snli_9000")
    read_gain = value("study_findings", ("entailment", crossed, "snli_9000"), "measured gain")
    told = seeds("sentences", *((data, pooling) for data in (*LABELLED, "SICK") for pooling in (hops, most, average)))
    table = f"[{told}](sentences.md#results)"
    return [
        [
            "classification",
            "mean-pooling; structured self-attention is not shown to gain",
            f"{mean(leads):+.1f} points by structured self-attention, mean of three sets, within the spread of seeds",
            table,
        ],
        explained_label(hops),
        [
            "hops",
            "no penalty, unless hops must differ",
            f"{unpenalised:+.1f} points on SST-2 without it, within the spread of seeds; {-penalised:+.1f} in a study of 16 hops, not "
            "shown",
            table,
        ],
        [
            "pairs of sentences",
            "one shared encoder, max-pooling; hops are not shown to gain",
            f"{pairs:+.1f} points over structured self-attention on SICK, within the spread of seeds; {-more_hops:+.1f} over 16 hops in a "
            "study, not shown",
            table,
        ],
        [
            "pairs of sentences, fusion",
            "features `[p; h; |p - h|; p * h]` rather than gated fusion",
            f"{fusion:+.1f} points over gated fusion on SICK; in a second study {again:+.1f} there and {more:+.1f} on 9,000 "
            "pairs of SNLI, not shown",
            f"[{shown}](studies.md#hops-and-their-penalty-lin-et-al-2017)",
        ],
        [
            "pairs of sentences, one reader or two crossed ones",
            "one shared reader; crossed readers are not shown to gain",
            f"{read_gain:+.1f} points on 9,000 pairs of SNLI by crossed readers over a shared Transformer, 95 % interval {interval}",
            f"[{unseen}](studies.md#two-sentences-shared-and-crossed-readers)",
        ],
    ]


def explained_label(hops: str) -> list[str]:
    """Return the row on words that explain a label."""
    removed, methods = ("SST-2", hops, "comprehensiveness"), ("integrated-gradients", "leave-one-out", "weights", "random order")
    gradients, removals, weights, drawn = (number("explain", removed, method) for method in methods)
    if not min(gradients, removals) > weights:
        raise SystemExit(f"explain.json: on SST-2 weights have a comprehensiveness of {weights}, not below {gradients} and {removals}")
    return [
        "words that explain a label",
        "integrated gradients or leave-one-out rather than the weights, measured by removing words",
        f"comprehensiveness on SST-2: {gradients:.2f} and {removals:.2f}, by the weights of structured self-attention {weights:.2f}, "
        f"at random {drawn:.2f}",
        f"[{seeds('explain_best', ('SST-2', hops))}, not tested](explain.md#results)",
    ]


def language() -> list[list[str]]:
    """Return the rows on language models."""
    measured = [row[:2] for row in read(RESULTS / "language.json")["rows"]]
    alone, grouped = (
        lead("language", (text, own), [(text, other), *(row for row in measured if row[0] == text)], "perplexity, continuous", lower=True)
        for text, own, other in (("Multi30k, English", "none", "plain"), ("Flickr8k captions", "plain", "none"))
    )
    told = seeds("language", *measured)
    return [
        [
            "language model of 2 million parameters, unrelated sentences",
            "no attention",
            f"{-alone:+.2f} perplexity against plain attention",
            f"[{told}](language.md#results)",
        ],
        [
            "language model of 2 million parameters, groups of texts, read as one",
            "plain attention",
            f"{-grouped:+.2f} perplexity against no attention",
            f"[{told}](language.md#results)",
        ],
    ]


def main() -> None:
    arguments = options(__doc__, out=RESULTS / "which_attention.json").parse_args()
    note = (
        "`python benchmarks/which_attention.py` computes every number from the table that its row links, and refuses a recommendation "
        "that these tables no longer support."
    )
    write(arguments.out, ["use case", "recommendation", "measured", "evidence"], rows(), note)


if __name__ == "__main__":
    main()
