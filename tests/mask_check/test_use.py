"""How `regard.check` is called: what it finds out by itself, what it asks for, what it leaves as it was."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention import MultiHeadAttention
from regard.errors import ConfigError, DataError
from regard.mask_check import CHECKS, Adapter, Sequence, assert_no_leaks, check, load_folder
from regard.mask_check.locate import span_of
from regard.models.transformer_layers import EncoderLayer, FeedForward
from tests.mask_check.zoo import FAULTS, GPT, RIGHT, Case, Encoder, RecurrentLM, Translator, V, VisionModel, images, masked, padded, tokens


def test_the_model_the_batch_and_the_generator_stay_as_they_were() -> None:
    model = RIGHT["packed tagger"].build().train()
    batch = RIGHT["packed tagger"].batch()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    given = {key: value.clone() for key, value in batch.items()}
    state = torch.get_rng_state()
    check(model, batch, causal=False)
    assert model.training
    assert all(torch.equal(weights[name], value) and value.dtype == torch.float32 for name, value in model.state_dict().items())
    assert all(torch.equal(given[key], value) for key, value in batch.items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("precision", ["tf32", "ieee", "none"])
def test_the_precision_of_products_stays_as_it_was(precision: str) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = precision
        check(RIGHT["packed tagger"].build(), RIGHT["packed tagger"].batch(), causal=False)
        assert torch.backends.cuda.matmul.fp32_precision == precision
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_the_place_of_a_decorated_forward_is_its_own_file() -> None:
    class Leaky(nn.Module):
        @torch.no_grad()
        def forward(self, states: Tensor) -> Tensor:
            return states + states.mean(1, keepdim=True)

    found = span_of(Leaky.forward)
    assert found is not None
    assert (found[0], found[2] - found[1]) == (__file__, 2)


class Tagger(nn.Module):
    """A layer of Regard or torch between an embedding and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {
            "heads": MultiHeadAttention(8, 2),
            "layer": EncoderLayer(MultiHeadAttention(8, 2), FeedForward(8, 8), pre=False, dropout=0.0),
            "torch": nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
        }
        self.kind, self.embedding, self.layer, self.head = kind, nn.Embedding(V, 8), layers[kind], nn.Linear(8, V)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embedding(idx)
        x = self.layer(x, x, x).context if self.kind == "heads" else self.layer(x, None)
        return self.head(x)


@pytest.mark.parametrize(("kind", "module"), [("heads", "layer"), ("layer", "layer.attention"), ("torch", "layer.self_attn")])
def test_a_leak_in_a_module_of_a_library_is_at_the_line_that_calls_it(kind: str, module: str) -> None:
    found = check(Tagger(kind), tokens(), causal=True)["future tokens"]
    assert (found.verdict, found.module) == ("leak", module)
    assert found.lines == f"test_use.py:{Tagger.forward.__code__.co_firstlineno + 2}"


def test_a_module_of_regard_that_fails_is_at_the_line_that_calls_it() -> None:
    class Fixed(Tagger):
        def forward(self, idx: Tensor) -> Tensor:
            x = self.embedding(idx)
            known = torch.ones(3, dtype=torch.bool) if len(idx) == 1 else None
            return self.head(self.layer(x, x, x, mask=known).context)

    found = check(Fixed("heads"), tokens(), causal=False)
    (failed,) = {one.lines for one in found.leaks if one.verdict == "error"}
    assert failed == f"test_use.py:{Fixed.forward.__code__.co_firstlineno + 3}"


def test_two_checks_of_one_model_say_the_same() -> None:
    model, batch = FAULTS["padding forgotten"].build(), masked()
    assert str(check(model, batch, causal=False)) == str(check(model, batch, causal=False))


def test_a_tensor_a_tuple_and_a_dictionary_are_taken() -> None:
    model = GPT().eval()
    found = [check(model, batch, causal=True) for batch in (tokens(), (tokens(),), {"idx": tokens()})]
    assert len({str(report) for report in found}) == 1
    text, mask = masked().values()
    assert check(Encoder(), (text, mask), causal=False)["padding content"].verdict == "ok"


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_bare_transformer_of_torch_is_taken_with_all_its_masks(batch_first: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fast path that is not taken
        model = nn.Transformer(12, 2, 1, 1, 24, batch_first=batch_first)
    rows, source, target = 5, 9, 8
    shapes = [(rows, length, 12) if batch_first else (length, rows, 12) for length in (source, target)]
    padding = torch.arange(source) >= torch.tensor([9, 8, 6, 5, 3])[:, None]
    batch = {
        "src": torch.randn(shapes[0]),
        "tgt": torch.randn(shapes[1]),
        "tgt_mask": torch.ones(target, target, dtype=torch.bool).triu(1),
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }
    report = assert_no_leaks(model, batch)
    for name in ("future tokens: tgt", "padding content: src", "padding amount: src", "row order"):
        assert report[name].verdict == "ok"
    forgotten = check(model, {key: value for key, value in batch.items() if key != "memory_key_padding_mask"})
    assert forgotten["padding amount: src"].module == "decoder.layers.0.multihead_attn"
    assert forgotten["padding amount: src"].cause.endswith("no mask arrives, attn_mask=None, key_padding_mask=None")
    inverted = check(model, batch | {"src_key_padding_mask": ~padding, "memory_key_padding_mask": ~padding})
    assert inverted["padding content: src"].module == "encoder.layers.0.self_attn"


@pytest.mark.parametrize("kind", [nn.TransformerEncoder, nn.TransformerDecoder])
def test_half_a_transformer_of_torch_is_taken(kind: Any) -> None:
    mask = torch.ones(8, 8, dtype=torch.bool).triu(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind is nn.TransformerEncoder:
            model = kind(nn.TransformerEncoderLayer(12, 2, 24, batch_first=True), 1)
            report = check(model, {"src": torch.randn(4, 8, 12), "mask": mask}, causal=True)
        else:
            model = kind(nn.TransformerDecoderLayer(12, 2, 24, batch_first=True), 1)
            batch = {"tgt": torch.randn(4, 8, 12), "memory": torch.randn(4, 9, 12), "tgt_mask": mask}
            report = check(model, batch)
    assert report.ok, str(report)
    assert any(result.check == "future tokens" and result.verdict == "ok" for result in report.results)


def test_the_padding_token_is_read_from_the_embedding() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(V, 8, padding_idx=0)
            self.head = nn.Linear(8, 3)

        def forward(self, idx: Tensor) -> Tensor:
            return self.head(self.embedding(idx).mean(1))

    report = check(Model(), padded()[0], causal=False)
    assert report["padding amount"].verdict == "leak"
    assert "the mean takes in the padding" in report["padding amount"].cause
    assert report["padding content"].verdict == "not checked"


def test_masks_are_made_in_call_from_what_the_check_changes() -> None:
    def call(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["text"], batch["text"] != 0)

    def wrong(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["text"], batch["text"] != 1)

    model, batch = Encoder(), {"text": padded()[0]}
    assert_no_leaks(model, batch, call=call, causal=False, pad=0)
    assert check(model, batch, call=wrong, causal=False, pad=0)["padding amount"].verdict == "leak"


def test_a_model_that_is_not_one_module_call_is_placed_by_its_parts() -> None:
    def call(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        memory = model.transformer.encoder(model.source(batch["src"]), src_key_padding_mask=batch["src"] == 0)
        return model.head(model.transformer.decoder(model.target(batch["tgt"]), memory))

    report = check(Translator(), {"src": padded()[0], "tgt": tokens(5, 9)}, call=call, pad=0)
    assert report["future tokens: tgt"].module == "transformer.decoder.layers.0.self_attn"


class OtherName(nn.Module):
    """Attention whose mask is called `m`; hidden, or added as 0 and 1."""

    def __init__(self, *, added: bool) -> None:
        super().__init__()
        self.embedding, self.attn = nn.Embedding(V, 12), Plain(added)

    def forward(self, idx: Tensor, m: Tensor) -> Tensor:
        return self.attn(self.embedding(idx), m)


class Plain(nn.Module):
    def __init__(self, added: bool) -> None:
        super().__init__()
        self.proj, self.added = nn.Linear(12, 12), added

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        scores = x @ x.mT
        scores = scores + m[:, None] if self.added else scores.masked_fill(m[:, None] == 0, -torch.inf)
        return self.proj(scores.softmax(-1) @ x)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_a_mask_is_known_by_its_values_where_its_name_says_nothing(kind: torch.dtype) -> None:
    text, mask = masked().values()
    batch = {"idx": text, "m": mask.to(kind)}
    assert assert_no_leaks(OtherName(added=False), batch, causal=False)["padding content"].verdict == "ok"
    found = check(OtherName(added=True), batch, causal=False)["padding content"]
    assert (found.verdict, found.module) == ("leak", "attn")
    assert "mask" in found.cause
    assert "(m, " in found.cause


def test_tokens_of_two_values_are_no_mask_and_positions_no_tokens() -> None:
    from regard.mask_check.automatic import is_mask, plain_adapter

    assert not is_mask("idx", torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]]))
    batch = {"idx": tokens(), "pos": torch.arange(11)[None], "segments": torch.ones(5, 11)}
    adapter = plain_adapter(GPT(), batch, keywords=True, causal=True, pad=None, call=None)
    assert [(sequence.name, sequence.mask) for sequence in adapter.sequences] == [("idx", ())]


def test_features_are_taken_and_a_mask_that_is_added() -> None:
    class Model(nn.Module):
        def __init__(self, *, masks: bool) -> None:
            super().__init__()
            self.attn, self.masks = nn.MultiheadAttention(12, 2, batch_first=True), masks

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.attn(x, x, x, key_padding_mask=mask if self.masks else None, need_weights=False)[0]

    keep = torch.arange(9) < torch.tensor([9, 7, 5, 4])[:, None]
    batch = {"x": torch.randn(4, 9, 12), "mask": torch.zeros(4, 9).masked_fill(~keep, -torch.inf)}
    assert_no_leaks(Model(masks=True), batch, causal=False)
    assert check(Model(masks=False), batch, causal=False)["padding content"].module == "attn"


def test_outputs_and_skipped_checks_are_taken_from_an_adapter() -> None:
    model = FAULTS["batch_first forgotten"].build()
    adapter = Adapter(
        (Sequence("idx"),), outputs={"": ("batch", "idx", None)}, skip=("other rows", "row alone", "training mode", "sees context")
    )
    report = check(model, tokens(), adapter=adapter)
    assert report.ok
    assert {"other rows", "row alone"} & {result.name for result in report.results} == set()
    with pytest.raises(
        ConfigError, match=r"Adapter.outputs: 'logits' with axes .* is none of the model's outputs: the only one \(5, 11, 23\)"
    ):
        check(model, tokens(), adapter=Adapter((Sequence("idx"),), outputs={"logits": ("batch",)}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequences": ()}, "Adapter.sequences: expected one Sequence or more"),
        ({"sides": ("top",)}, r"Adapter.sides: expected some of left, right, found 'top'"),
        ({"sides": ()}, "Adapter.sides: expected left, right or both, found none"),
        ({"skip": ("future",)}, r"Adapter.skip: expected some of batch size, .*found 'future'"),
        ({"start": lambda *_: None}, "start and step go together"),
    ],
)
def test_an_adapter_that_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Adapter(**({"sequences": (Sequence("idx"),)} | settings))


@pytest.mark.parametrize(
    ("model", "batch", "options", "message"),
    [
        (GPT(), None, {}, "GPT is neither of Hugging Face nor of Regard; give a batch"),
        (GPT(), tokens(), {}, r"may an output see later tokens of 'idx'\? Say causal=True"),
        (GPT(), 5, {"causal": True}, "expected a tensor, a tuple of tensors or a dictionary of them, found int"),
        (GPT(), tokens(), {"causal": True, "call": lambda m, b: m(b["idx"])}, "with call= give a dictionary"),
        (GPT(), {"idx": tokens()}, {"causal": True, "call": lambda m, b: torch.ones(5, 11, 3)}, "did not run the model it was given"),
        (GPT(), {"idx": tokens()}, {"adapter": Adapter((Sequence("tokens"),))}, "the batch has no tensor 'tokens'"),
        (GPT(), tokens(), {"adapter": Adapter((Sequence("idx"),)), "causal": True}, "an adapter says what causal, pad and call would say"),
        (GPT(), None, {"adapter": Adapter((Sequence("idx"),))}, "an adapter needs a batch"),
        (nn.Linear(3, 3), {"x": torch.ones(4, 3)}, {"causal": False}, r"found no tokens .* among x \(4, 3\); give adapter"),
        (nn.Embedding(3, 3), torch.ones(5, dtype=torch.long), {"causal": False}, "add a batch axis"),
        (GPT(), {"idx": tokens(), "mask": tokens()}, {"causal": True}, "a padding mask has two values, found"),
        (
            GPT(),
            {"idx": tokens(5, 11), "mask": torch.ones(5, 11, 11).tril() > 0},
            {"causal": True},
            r"'mask' of shape \(5, 11, 11\) is a mask of pairs",
        ),
        (GPT(), {"idx": tokens(5, 11), "mask": torch.ones(5, 1, 11, 11)}, {"causal": True}, r"give the padding mask \(5, 11\) instead"),
        (
            Translator(),
            {"src": tokens(5, 11), "tgt": tokens(6, 9)},
            {},
            r"different numbers of examples, src \(5, 11\), tgt \(6, 9\); where time comes first",
        ),
        (GPT(), {"idx": tokens(5, 11), "extra": torch.ones(3, 3)}, {"causal": True}, r"cannot tell what 'extra' of shape \(3, 3\) is"),
    ],
)
def test_what_cannot_be_told_is_asked_for(model: nn.Module, batch: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(model, batch, **options)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (tokens(4, 3), "its longest row has 3 positions; a check needs 4 or more"),
        (torch.ones(4, 9, dtype=torch.long), "all its tokens are the same"),
        (tokens() + V, "GPT cannot run it: index out of range"),
        (torch.randint(1, V, (4, 80)), "GPT cannot run it: index out of range"),
    ],
)
def test_a_batch_that_cannot_be_used_is_named(batch: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(GPT(), batch, causal=True)


def test_no_module_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"expected a torch.nn.Module, found function"):
        check(lambda x: x, tokens())  # type: ignore[arg-type]


def test_an_output_that_reads_nothing_is_no_success() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(V, 4)

        def forward(self, idx: Tensor) -> Tensor:
            return self.embedding(torch.zeros_like(idx))

    with pytest.raises(ConfigError, match="causal: Constant cannot be checked for it: no output depends on idx at all"):
        check(Constant(), tokens(), causal=True)


def test_a_class_token_that_sees_class_tokens_alone_is_no_success() -> None:
    with pytest.raises(ConfigError, match=r"VisionModel: no output depends on the batch at all, .*look for a wrong axis"):
        check(VisionModel(batch_first=False, pool="token"), images())


def test_nan_at_a_real_position_is_found_where_it_arises() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.attn = nn.Embedding(V, 12), nn.MultiheadAttention(12, 2, batch_first=True)

        def forward(self, idx: Tensor) -> Tensor:
            x = self.embedding(idx)
            mask = torch.ones(idx.shape[1], idx.shape[1], dtype=torch.bool).triu(0)
            return self.attn(x, x, x, attn_mask=mask)[0]

    report = check(Masked(), tokens(), causal=True)
    assert (report["finite values"].verdict, report["finite values"].module) == ("leak", "attn")
    assert report["finite values"].positions == (0,)


def test_a_failing_assertion_holds_the_table() -> None:
    with pytest.raises(AssertionError, match=r"future tokens .*LEAK .*rnn") as caught:
        assert_no_leaks(RecurrentLM(bidirectional=True), tokens(), causal=True)
    assert "bidirectional=True" in str(caught.value)


def test_a_report_can_be_written_as_json() -> None:
    report = check(RecurrentLM(bidirectional=True), tokens(), causal=True)
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    leak = next(result for result in found["results"] if result["verdict"] == "leak")
    assert (found["ok"], leak["module"], leak["positions"]) == (False, "rnn", [0, 1, 2, 3])


def test_the_names_of_checks_are_those_of_results() -> None:
    report = check(
        RIGHT["language model with a mask, padded on both sides"].build(),
        masked(),
        **RIGHT["language model with a mask, padded on both sides"].options,
    )
    assert {result.check for result in report.results} <= set(CHECKS)


def test_it_is_offered_by_the_package() -> None:
    assert regard.check is check
    with pytest.raises(DataError, match="no-such-folder: no such folder"):
        load_folder("no-such-folder")


def on_gpu(batch: Any) -> Any:
    """Move a batch, a tensor or tensors by name."""
    return {key: value.cuda() for key, value in batch.items()} if isinstance(batch, dict) else batch.cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_on_a_gpu_a_fault_is_found_where_it_is(case: Case) -> None:
    batch = on_gpu(case.batch())
    found = {result.name: result.module for result in check(case.build().cuda(), batch, **case.options).leaks}
    assert found[case.check] == case.module


@pytest.mark.gpu
@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_on_a_gpu_a_right_model_passes(case: Case) -> None:
    batch = on_gpu(case.batch())
    for dtype in (None, torch.float32):
        assert_no_leaks(case.build().cuda(), batch, **case.options, dtype=dtype)


def test_functions_set_on_a_model_run_on_the_copy() -> None:
    model = RIGHT["language model"].build()
    block, other = model.blocks[0], model.blocks[1]
    forward = block.attn.forward

    def noisy(x: Tensor, mask: Tensor | None = None, *, again: nn.Module = block.norm1) -> Tensor:
        return forward(x, mask) + torch.nn.functional.dropout(again(x), 0.5, block.training)

    block.attn.forward = noisy
    other.register_forward_hook(lambda module, args, output: output + other.norm1(output))
    model.train()  # as the original, the copy not
    with torch.no_grad():
        before = copy.deepcopy(model.state_dict())
        report = check(model, tokens(), causal=True)
    assert report.ok, str(report)
    assert block.attn.forward is noisy
    assert noisy.__closure__ is not None
    assert any(cell.cell_contents is block for cell in noisy.__closure__)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert check(model, tokens(), causal=True, dtype=torch.float64).dtype == "float64"

    def open_to_all(x: Tensor, mask: Tensor | None = None) -> Tensor:
        return forward(x, mask) + x.mean(1, keepdim=True)

    block.attn.forward = open_to_all
    assert [leak.name for leak in check(model, tokens(), causal=True).leaks] == ["future tokens"]


def test_causal_that_cannot_be_seen_is_no_clean_report() -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn = torch.nn.Embedding(11, 6), torch.nn.GRU(6, 6, batch_first=True, bidirectional=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.rnn(self.embedding(tokens))[0][:, -1]  # as many do in generation

    tokens = torch.randint(11, (4, 7))
    with pytest.raises(ConfigError, match="causal: Last cannot be checked for it: no output has an axis of positions"):
        check(Last(), tokens, causal=True)
    assert check(Last(), tokens, causal=False).ok
    every = check(Last(), {"tokens": tokens}, causal=True, call=lambda model, batch: model.rnn(model.embedding(batch["tokens"]))[0])
    assert not every.ok


def test_a_second_sequence_that_is_causal_and_cannot_be_checked_is_no_clean_report() -> None:
    class Tied(Translator):
        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            return super().forward(src, tgt) if src.shape == tgt.shape else src + tgt

    def call(model: nn.Module, batch: Any) -> Any:
        return model(batch["src"], batch["tgt"])

    batch = {"src": tokens()[:, :7], "tgt": tokens()[:, :7].flip(0)}
    says = (
        "causal: Tied cannot be checked for it: no output has an axis of positions that is known, for the model runs at one length of tgt"
    )
    for options in ({}, {"call": call}, {"adapter": Adapter((Sequence("src"), Sequence("tgt", causal=True)), call=call)}):
        with pytest.raises(ConfigError, match=f"{says} only: The size of tensor a .*Adapter"):
            check(Tied(), batch, **options)
