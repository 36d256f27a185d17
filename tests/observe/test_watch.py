"""What is chosen, what it costs, what is refused, and that nothing is left behind."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import regard
from regard import ops
from regard.errors import ConfigError, DataError
from regard.observe import observer
from regard.ops import mods
from tests.observe import tutorials
from tests.observe.families import EMBED, FAMILIES, vision
from tests.observe.tutorials import GPT


@pytest.fixture
def model() -> nn.Transformer:
    return nn.Transformer(EMBED, 2, 2, 2, 13, batch_first=True).eval()


def given() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 7, EMBED), torch.randn(2, 5, EMBED)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("decoder.*", [f"decoder.layers.{n}.{part}_attn" for n in range(2) for part in ("self", "multihead")]),
        ("*.multihead_attn", [f"decoder.layers.{n}.multihead_attn" for n in range(2)]),
        ("encoder.layers.1", ["encoder.layers.1.self_attn"]),
        (
            ["encoder.layers.0", "decoder.layers.[01].self_attn"],
            ["encoder.layers.0.self_attn", *(f"decoder.layers.{n}.self_attn" for n in (0, 1))],
        ),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_layers_are_chosen_by_their_names(model: nn.Module, layers: Any, expected: list[str], grad: bool) -> None:
    with torch.set_grad_enabled(grad), regard.watch(model, layers=layers) as seen:
        model(*given())
    assert [call.layer for call in seen] == expected


def test_only_what_is_asked_for_costs_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, modes = GPT(flash=False), torch.randint(37, (1, 5)), []
    embedding = F.embedding

    def note(*args: Any, **kwargs: Any) -> Tensor:
        modes.append(len(_get_current_function_mode_stack()))
        return embedding(*args, **kwargs)

    monkeypatch.setattr(F, "embedding", note)
    with regard.watch(model, layers="h.1") as seen:
        assert [name for name, module in model.named_modules() if module._forward_hooks] == ["h.1"]
        model(ids)
    assert modes == [0, 0]  # outside of the layer no function of torch takes a detour
    assert [call.layer for call in seen] == ["h.1"]


@pytest.mark.parametrize("flash", [True, False])
def test_heads_are_chosen_by_their_numbers(flash: bool) -> None:
    model, ids = GPT(flash=flash), torch.randint(37, (2, 5))
    with regard.watch(model) as whole:
        model(ids)
    for heads, numbers in ((1, (1,)), ([2, 0], (2, 0))):
        with regard.watch(model, heads=heads) as seen:
            model(ids)
        assert seen[1].heads == numbers
        torch.testing.assert_close(seen[1].weights, whole[1].weights[:, list(numbers)], atol=1e-6, rtol=1e-6)
    with pytest.raises(ConfigError, match="heads: 3: a layer has 3 heads, counted from 0"), regard.watch(model, heads=3):
        model(ids)


@pytest.mark.parametrize("heads", [-1, [], [True], "0", ["0"], [0, -2], 1.5, torch.tensor(1.5), torch.tensor(-1)])
def test_heads_that_are_no_numbers_are_refused(model: nn.Module, heads: Any) -> None:
    with pytest.raises(ConfigError, match="watch: heads: expected numbers of heads from 0 on"), regard.watch(model, heads=heads):
        pass


def test_what_cannot_be_chosen_is_refused(model: nn.Module) -> None:
    expected = "layers: 'decoder.layers.2' is the name of no module; modules that attend: .*encoder.layers.0.self_attn"
    with pytest.raises(ConfigError, match=expected), regard.watch(model, layers=["encoder.*", "decoder.layers.2"]):
        pass
    with (
        pytest.raises(ConfigError, match=r"layers: expected names of modules such as 'decoder\.\*', found 3"),
        regard.watch(model, layers=[3]),
    ):  # type: ignore[list-item]
        pass
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module, found str"), regard.watch("model"):  # type: ignore[arg-type]
        pass
    with (
        pytest.raises(
            ConfigError, match=r"Transformer ran, but the modules of layers='decoder\.norm' were not called, or attend to nothing"
        ),
        regard.watch(model, layers="decoder.norm"),
    ):
        model(*given())


def test_layers_that_were_not_called_are_told() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x, x, x)[0]

    half = Half()
    with (
        pytest.raises(ConfigError, match="Half ran, but the modules of layers='other' were not called"),
        regard.watch(half, layers="other"),
    ):
        half(torch.ones(3, 1, 4))
    with regard.watch(half, layers="other"):
        pass  # the model did not run, either


def test_a_model_is_watched_once_at_a_time_and_two_models_side_by_side(model: nn.Module) -> None:
    other = GPT(flash=True)
    with regard.watch(model) as seen, regard.watch(other) as others:
        model(*given())
        other(torch.randint(37, (1, 5)))
        for part in (model, model.encoder):
            with pytest.raises(ConfigError, match="is being watched already"), regard.watch(part):
                pass
        model(*given())
    assert (len(seen), len(others)) == (12, 2)


def test_nothing_is_left_behind_even_by_an_error(model: nn.Module) -> None:
    has_torch_function = torch.overrides.has_torch_function

    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("stop")

    whole = nn.Sequential(vision(fused=True).model, Breaks())
    with pytest.raises(RuntimeError, match="stop"), regard.watch(whole) as seen:
        whole(torch.randn(2, 3, 6, 10))
    assert len(seen) == 2  # no error about what was not seen hides the first one
    assert torch.overrides.has_torch_function is has_torch_function
    assert _get_current_function_mode_stack() == []
    assert observer._active == []
    assert not any(hooks for module in whole.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
    with regard.watch(whole) as seen:
        with pytest.raises(RuntimeError, match="stop"):
            whole(torch.randn(2, 3, 6, 10))
        assert _get_current_function_mode_stack() == []  # as soon as the model is left
    assert len(seen) == 2


@pytest.mark.parametrize("inside", [True, False])
def test_nothing_is_left_behind_by_an_interrupt(inside: bool) -> None:
    class Passes(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    whole, x = nn.Sequential(tutorials.Head(6, 6), Stops()), torch.randn(2, 5, 6)
    with Passes() as outer:
        with pytest.raises(KeyboardInterrupt), regard.watch(whole) as seen, Passes() if inside else nullcontext():
            whole(x)  # torch calls no hook behind an interrupt
        assert _get_current_function_mode_stack() == [outer]
        (x @ x.mT).softmax(-1) @ x
    assert not any(hooks for module in whole.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
    assert len(seen) == 1


def test_a_mode_of_the_user_sees_the_model_and_not_what_is_computed_on_the_side() -> None:
    class Counts(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model, ids = GPT(flash=True), torch.randint(37, (1, 5))
    with Counts() as alone:
        model(ids)
    with Counts() as watched, regard.watch(model):
        model(ids)
    assert watched.calls == alone.calls


def test_the_model_may_run_in_a_thread() -> None:
    model, ids = GPT(flash=True), torch.randint(37, (1, 5))
    with regard.watch(model) as seen:
        thread = threading.Thread(target=model, args=(ids,))
        thread.start()
        thread.join()
    assert [call.layer for call in seen] == ["h.0", "h.1"]


def test_a_thread_that_ran_before_goes_on_unseen() -> None:
    model, ids, errors, stopped = GPT(flash=True), torch.randint(37, (1, 5)), list[Exception](), threading.Event()

    def run() -> None:
        while not stopped.is_set():
            try:
                model(torch.randint(37, (2, 7)))
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    shapes = set()
    for _ in range(30):
        with regard.watch(model) as seen:
            model(ids)
        shapes |= {(call.layer, tuple(call.weights.shape[-2:])) for call in seen}
    stopped.set()
    thread.join()
    assert not errors
    assert shapes == {("h.0", (5, 5)), ("h.1", (5, 5))}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_in_the_backward_pass_is_not_counted_again(reentrant: bool) -> None:
    class Saving(GPT):
        def forward(self, idx: Tensor) -> Tensor:
            x = self.wte(idx)
            for block in self.h:
                x = x + checkpoint(block, x, use_reentrant=reentrant)
            return x

    model, ids = Saving(flash=True), torch.randint(37, (1, 5))
    model(ids).sum().backward()
    expected = [parameter.grad for parameter in model.h.parameters()]
    model.zero_grad()
    with regard.watch(model) as seen:
        model(ids).sum().backward()
    assert [call.layer for call in seen] == ["h.0", "h.1"]
    assert all(torch.equal(one.grad, other) for one, other in zip(model.h.parameters(), expected, strict=True))


def test_records_of_inference_mode_can_be_used_outside() -> None:
    for flash in (True, False):
        model = GPT(flash=flash)
        with regard.watch(model) as seen, torch.inference_mode():
            model(torch.randint(37, (1, 5)))
        assert not any(call.weights.is_inference() for call in seen)
        seen[0].weights.mul_(2)


def test_recorded_weights_are_not_those_of_the_model() -> None:
    model = GPT(flash=False).eval()
    kept: list[Tensor] = []
    model.h[0].attn_dropout.register_forward_hook(lambda module, args, output: kept.append(output))
    with regard.watch(model) as seen:
        output = model(torch.randint(37, (1, 5)))
        seen[0].weights.zero_()
    assert kept[0].sum() > 0
    assert output.sum() > 0


def test_compiled_code_is_refused_with_what_to_do() -> None:
    torch._dynamo.reset()
    model, ids = GPT(flash=True), torch.randint(37, (1, 5))
    compiled = torch.compile(model, backend="eager")
    with (
        pytest.raises(ConfigError, match="OptimizedModule is compiled, and a compiled graph cannot be seen into"),
        regard.watch(compiled),
    ):  # type: ignore[arg-type]
        pass
    with torch.compiler.set_stance("force_eager"), regard.watch(compiled) as seen:  # type: ignore[arg-type]
        compiled(ids)
    assert [call.layer for call in seen] == ["h.0", "h.1"]
    model.h[1].compile(backend="eager")
    with pytest.raises(ConfigError, match=r"watch: h\.1 is compiled"), regard.watch(model):
        pass


class Compiled(nn.Module):
    """A module that attends through a compiled function."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, x, x)


class CompiledAttention(Compiled):
    pass


@pytest.mark.parametrize("stance", ["default", "force_eager"])
def test_a_compiled_function_runs_as_it_does_and_is_named(stance: str) -> None:
    torch._dynamo.reset()
    model, x = CompiledAttention(torch.compile(F.scaled_dot_product_attention, backend="aot_eager")), torch.randn(2, 3, 5, 4)
    expected = model(x)
    if stance == "force_eager":
        with torch.compiler.set_stance("force_eager"), regard.watch(model) as seen:
            assert torch.equal(model(x), expected)
        assert len(seen) == 1
        return
    with regard.watch(model, strict=False) as seen:
        assert torch.equal(model(x), expected)
    assert [unseen.layer for unseen in seen.unseen] == ["CompiledAttention"]
    assert "compiled functions" in seen.unseen[0].reason


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_that_is_not_compiled_runs_as_it_does_and_is_seen() -> None:
    torch._dynamo.reset()
    model, x = CompiledAttention(flex_attention), torch.randn(1, 2, 16, 8)
    expected = model(x)
    with regard.watch(model) as seen:
        assert torch.equal(model(x), expected)
    torch.testing.assert_close(seen[0].weights, (x @ x.mT / 8**0.5).softmax(-1))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_torchscript_is_refused() -> None:
    class Scripted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    scripted = nn.Sequential(torch.jit.trace(Scripted(), torch.randn(2, 3, 5, 4)))
    with pytest.raises(ConfigError, match="watch: 0 is TorchScript, which cannot be seen into"), regard.watch(scripted):
        pass


def test_an_exported_graph_is_seen() -> None:
    model, x = Compiled(F.scaled_dot_product_attention), torch.randn(2, 3, 5, 4)
    exported = torch.export.export(model, (x,)).module()
    with regard.watch(exported) as seen:
        output = exported(x)
    assert torch.equal(output, model(x))
    torch.testing.assert_close(seen[0].weights @ x, output, atol=1e-6, rtol=1e-6)


class Mixer(nn.Module):
    """Attends in a method that is not `forward`; as a part of another module, or by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(6, 12)

    def mix(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        return (q @ k.mT).softmax(-1) @ x

    def reset(self) -> None:
        self.qk.reset_parameters()


class CallsMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Mixer(), Mixer()

    def forward(self, x: Tensor) -> Tensor:
        return self.other.mix(self.inner.mix(x))

    def encode(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ self.inner.mix(x)


def test_attention_in_a_method_is_that_of_its_module() -> None:
    model, x, own = CallsMix(), torch.randn(2, 5, 6), vars(Mixer)["mix"]
    for name, layers in (("forward", ["inner", "other"]), ("encode", ["inner", "CallsMix"])):
        expected = getattr(model, name)(x)
        with regard.watch(model) as seen:
            assert torch.equal(model(x) if name == "forward" else model.encode(x), expected)
        assert seen.layers == layers
    with regard.watch(model, layers="other") as seen:
        model(x)
        model.inner.reset()
        Mixer().mix(x)
    assert seen.layers == ["other"]
    assert vars(Mixer)["mix"] is own


def test_a_copy_of_a_watched_model_is_not_watched() -> None:
    for model, given in ((GPT(flash=True), torch.randint(37, (1, 5))), (vision(fused=True).model, torch.randn(2, 3, 6, 10))):
        with regard.watch(model) as seen:
            model(given)
            copied = copy.deepcopy(model)
            copied(given)
            assert len(seen) == 2
            with pytest.raises(ConfigError, match="cannot be saved whole while it is watched"):
                observer._active[0].__reduce__()
        copied(given)


@pytest.mark.parametrize("flash", [True, False])
def test_tensors_without_numbers_and_transforms_are_refused(flash: bool) -> None:
    with torch.device("meta"):
        empty = GPT(flash=flash)
    with pytest.raises(ConfigError, match=r"h\.0 ran on tensors that hold no numbers"), regard.watch(empty):
        empty(torch.zeros(1, 5, dtype=torch.long, device="meta"))
    model = GPT(flash=flash)
    with pytest.raises(ConfigError, match=r"h\.0 ran inside a transform of torch.func, such as vmap"), regard.watch(model):
        torch.vmap(lambda row: model(row[None]))(torch.randint(37, (3, 5)))
    assert _get_current_function_mode_stack() == []


def test_a_layer_that_is_used_twice_is_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(EMBED, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(self.attention(x, x, x)[0], x, x)[0]

    model = Twice()
    with regard.watch(model) as seen:
        model(torch.randn(2, 5, EMBED))
    assert [(call.layer, call.kind) for call in seen] == [("attention", "self"), ("attention", "cross")]
    assert repr(seen) == "<2 calls of Twice in 1 layer>"


def test_a_package_of_its_own_fused_way_is_named_by_its_setting() -> None:
    class Config:
        _attn_implementation = "flash_attention_2"

    class FlashAttention(nn.Module):
        config = Config()

        def forward(self, x: Tensor) -> Tensor:
            return x

    model = nn.Sequential(FlashAttention())
    expected = r"its attention is 'flash_attention_2', a kernel of its own; model\.set_attn_implementation\(\"sdpa\"\) can be seen"
    with pytest.raises(ConfigError, match=expected), regard.watch(model):
        model(torch.ones(1, 2, 3))


def test_the_families_cover_what_was_promised() -> None:
    names = {name.split()[0] for name in FAMILIES}
    assert {"nn.Transformer", "nn.TransformerEncoder", "bert", "gpt2", "llama", "marian", "timm", "vit"} <= names


@pytest.mark.parametrize("length", [5, 300])
def test_a_call_of_ops_attention_is_one_call_and_not_its_tiles(length: int) -> None:
    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.attention(x, x, x, lambda score, _, h, i, j: score - 0.1 * h * (i - j), mask_mod=mods.causal())

    model, x = Block(), torch.randn(4, 2, length, 8, requires_grad=True)
    expected = model(x)
    with regard.watch(model) as seen:
        found = model(x)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert len(seen) == 1
    weights = seen[0].weights
    assert weights.shape == (4, 2, length, length)
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights @ x, found, rtol=1e-4, atol=1e-5)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_copy_made_in_the_block_is_clean() -> None:
    model = GPT(flash=True).eval()
    own = model.register_forward_hook(lambda module, args, output: None)
    names = list(vars(model))
    with regard.watch(model, layers="h.0"), regard.watch(model, layers="h.1"):
        twin, block = copy.deepcopy(model), copy.deepcopy(model.h[1])
        average = torch.optim.swa_utils.AveragedModel(model)
        assert hooks_of(model) > hooks_of(twin) == hooks_of(average) == 1  # the user's
        assert hooks_of(block) == 0
        assert not any("__deepcopy__" in vars(module) for module in (*twin.modules(), *block.modules(), *average.modules()))
    own.remove()
    assert hooks_of(model) == 0
    assert list(vars(model)) == names
    with regard.watch(twin) as seen:
        twin(torch.ones(1, 3, dtype=torch.long))
    assert seen.layers


def test_a_block_can_be_entered_again_and_not_within_itself() -> None:
    attention, states = nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(1, 3, 4)
    block = regard.watch(attention)
    for _ in range(2):
        with block as seen:
            attention(states, states, states)
            with pytest.raises(ConfigError, match="MultiheadAttention is being watched already"), block:
                pass
        assert len(seen) == 1


def test_layers_that_are_no_names_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match=r"layers: expected names of modules such as 'decoder.\*', found 5"),
        regard.watch(GPT(flash=True), layers=cast(Any, 5)),
    ):
        pass


def test_fewer_tokens_than_a_causal_model_read_are_refused() -> None:
    model = GPT(flash=True).eval()
    with regard.watch(model) as seen:
        model(torch.ones(2, 7, dtype=torch.long))
    with pytest.raises(DataError, match="3 key_tokens for 7 keys, and the others are attended to, too"):
        regard.view(seen, [list("abc"), list("abc")])
    assert len(regard.view(seen, [list("abc"), list("abcdefg")]).html)  # the first is padded on the right


def test_a_block_that_was_not_entered_cannot_be_shown() -> None:
    with pytest.raises(DataError, match="records inside its block"):
        regard.view(regard.watch(GPT(flash=True)), list("abc"))


def test_a_module_that_is_used_twice_has_both_its_names() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    model = nn.ModuleDict({"first": nn.ModuleDict({"attn": attention}), "second": nn.ModuleDict({"attn": attention})})
    x = torch.randn(1, 3, 4)
    for layers, name in [("second.attn", "second.attn"), ("first.attn", "first.attn"), ("second", "second.attn"), (None, "first.attn")]:
        with regard.watch(model, layers=layers) as seen:
            attention(x, x, x)
        assert [call.layer for call in seen.calls] == [name]
