"""Area attention inside a Hugging Face model: train it, look at it, save it, bring it back.

A small Marian translator with random weights begins to learn to write numbers backwards; its first two layers attend to areas of up
to five items, with the learned keys of Eq. 9 (Li et al. 2018). Nothing is downloaded. Run: python examples/hf_area_attention.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

import regard
from regard.integrations.transformers import enable_area, restore

PAD, END, FIRST_DIGIT = 0, 1, 2
STEPS = 60


def backwards(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Make (numbers, the same backwards), each row ending in END."""
    digits = torch.randint(FIRST_DIGIT, FIRST_DIGIT + 10, (rows, length))
    end = torch.full((rows, 1), END)
    return torch.cat([digits, end], 1), torch.cat([digits.flip(1), end], 1)


def main() -> None:
    """Train for a few seconds and show what the decoder looked at."""
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=FIRST_DIGIT + 10,
        d_model=32,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=16,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,
    )
    model: Any = MarianMTModel(config)

    handle = enable_area(model, max_area=5, key_mode="features", layers=2)  # before the optimizer is made: it adds weights
    learned = sum(parameter.numel() for parameter in handle.parameters())
    print(f"{len(handle.layers)} attention layers, {learned} learned weights of area keys")

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        source, target = backwards(32, 5)
        loss = model(input_ids=source, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {STEPS} steps")

    model.eval()
    source, _ = backwards(1, 5)
    with regard.watch(model, areas=True) as seen, torch.no_grad():
        model.generate(source, max_new_tokens=6)
    record = next(record for record in seen if record.kind == "cross")
    assert record.areas is not None
    print(f"{record.layer}: {record.weights.shape[-1]} items, {record.areas.shape[-1]} areas")
    print("its first step, head 0, weights of the items:", " ".join(f"{weight:.2f}" for weight in record.weights[0, 0, 0]))

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = MarianMTModel.from_pretrained(folder)
        restore(again, folder)
    with torch.no_grad():
        same = torch.equal(again(source, decoder_input_ids=source).logits, model(source, decoder_input_ids=source).logits)
    print("saved and brought back:", "the same outputs" if same else "other outputs")


if __name__ == "__main__":
    main()
