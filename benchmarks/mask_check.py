"""Time `regard.check` on Hugging Face models with random weights, and write docs/results/mask_check.json; nothing is downloaded.

    python benchmarks/mask_check.py --out docs/results/mask_check.json

Each model is checked on the batch of random tokens that the check makes itself: four rows of up to nine tokens. Nothing else may run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from harness import Table, machine, median, options
from torch import nn

import regard


def marian() -> nn.Module:
    sides = {
        f"{side}_{name}": number
        for side in ("encoder", "decoder")
        for name, number in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))
    }
    return transformers.MarianMTModel(
        transformers.MarianConfig(vocab_size=32_000, d_model=512, **sides, pad_token_id=0, decoder_start_token_id=0)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "BERT base": lambda: transformers.BertModel(transformers.BertConfig()),
    "GPT-2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "Marian, 6 + 6 layers": marian,
}


def main() -> None:
    arguments = options(__doc__, rounds=3, threads=2).parse_args()
    torch.set_num_threads(arguments.threads)
    note = f"`python benchmarks/mask_check.py`: random weights, median of {arguments.rounds} checks. {machine(arguments.threads)}."
    table = Table(arguments.out, ["model", "parameters, millions", "precision", "checks made", "passes", "time, s"], note)
    for name, build in MODELS.items():
        model = build()
        reports = [regard.check(model) for _ in range(arguments.rounds)]
        made = sum(result.verdict != "not checked" for result in reports[0].results)
        size = round(sum(parameter.numel() for parameter in model.parameters()) / 1e6)
        table.add([name, size, reports[0].dtype, made, reports[0].passes, median([report.seconds for report in reports], 1)])


if __name__ == "__main__":
    main()
