"""The examples at the end of each command's help."""

from __future__ import annotations

EXAMPLES = {
    "demo": ["regard demo --out runs/demo"],
    "list": ["regard list mechanisms", "regard list settings --task classification"],
    "parameters": ["regard parameters configs/multi30k_transformer.yaml model.embed_dim=512"],
    "doctor": ["regard doctor", "regard doctor --benchmark"],
    "train translation": [
        "regard train translation --source train.en --target train.de --out runs/de",
        "regard train translation --source pairs.csv --out runs/de model.type=transformer",
        "regard train translation --from runs/de --source own.en --target own.de --out runs/own",
    ],
    "train captioning": [
        "regard train captioning --captions captions.tsv --images photos --out runs/captions",
        "regard train captioning --captions captions.tsv --out runs/areas model.area.height=3 model.area.width=3",
    ],
    "train classification": [
        "regard train classification --train train.tsv --out runs/reviews",
        "regard train classification --train train.tsv --valid dev.tsv --test test.tsv --out runs/reviews model.pooling=max",
    ],
    "train entailment": ["regard train entailment --train train.jsonl --valid dev.jsonl --out runs/pairs"],
    "train lm": ["regard train lm --text train.txt --valid-text valid.txt --out runs/lm"],
    "translate": [
        "regard translate runs/de < test.en > test.de",
        "regard translate runs/de --beam-size 5 --json < test.en > test.jsonl",
        "regard translate runs/de --input 'shards/*.en' --output translated",
    ],
    "caption": ["regard caption runs/captions photo.jpg", "regard caption runs/captions photos --names > captions.tsv"],
    "generate": [
        "regard generate runs/lm --sample --top-p 0.9 --seed 1 < beginnings.txt",
        "regard generate reverse --out words --count 10000",
    ],
    "score": ["regard score runs/lm < test.txt", "regard score runs/de --source pool.en --target pool.de > scores.txt"],
    "align": ["regard align runs/de --source test.en --target test.de > test.links"],
    "shortlist": ["regard shortlist runs/de --source train.en --target train.de"],
    "distill": ["regard distill runs/de --source train.en --out taught --beam-size 5"],
    "classify": ["regard classify runs/reviews < test.txt", "regard classify runs/reviews test.txt --json > test.jsonl"],
    "entail": ["regard entail runs/pairs < pairs.tsv"],
    "explain": [
        'regard explain runs/de --text "a red ball falls"',
        'regard explain runs/reviews --text "a dull film" --method integrated-gradients',
        "regard explain runs/reviews --method all --faithfulness test.tsv --json measured.json",
    ],
    "evaluate": [
        "regard evaluate runs/de --source test.en --target test.de",
        "regard evaluate runs/own --source test.en --target test.de --baseline runs/de",
        "regard evaluate runs/reviews --examples test.tsv --json scores.json",
    ],
    "view": [
        'regard view runs/de --text "a red ball falls"',
        'regard view runs/de runs/own --text "a red ball falls" -o page.html',
        'regard view --hf FOLDER --text "a red ball falls" -o figure.pdf',
    ],
    "check": ["regard check runs/de", "regard check --hf FOLDER"],
    "compare": [
        "regard compare study.yaml --estimate",
        "regard compare study.yaml --out runs/study --workers 2",
        "regard compare study.yaml --out runs/study --report",
    ],
    "serve": ["regard serve runs/de", "regard serve runs/de runs/own --port 0"],
    "export": ["regard export runs/de --format html --out model.html", "regard export runs/de --format onnx --out model"],
    "import": ["regard import opus-mt-en-de --from marian --out runs/opus"],
}
"""Command lines by command."""


def examples_of(command: str) -> str:
    """Return the examples of a command, such as "train lm", as text that click does not wrap.

    Raises:
        KeyError: the command has none.

    Examples:
        >>> examples_of("entail").splitlines()[1:]
        ['Examples:', '  regard entail runs/pairs < pairs.tsv']
    """
    return "\n  ".join(["\b\nExamples:", *EXAMPLES[command]])
