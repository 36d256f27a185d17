"""Calls of recurrent cells, stacks and encoders: wrong arguments, masks, traced graphs, hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from regard.attention import Attention, DotScore, MultiHeadAttention
from regard.errors import ConfigError, ShapeError
from regard.models import RecurrentCell, RecurrentEncoder, RecurrentStack
from regard.models.rnn_cells import GateInput

KINDS = ["gru", "lstm", "tanh"]
LENGTHS = torch.tensor([5, 1, 2])
MASK = torch.arange(5) < LENGTHS[:, None]
GATES = {"gru": 3, "lstm": 4, "tanh": 1}


def encoder(kind: Any, **settings: Any) -> RecurrentEncoder:
    torch.manual_seed(1)
    return RecurrentEncoder(kind, 4, 6, **{"num_layers": 1, "bidirectional": True, "dropout": 0.0, **settings})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_lengths_of_other_shapes_are_refused(kind: Any, dtype: torch.dtype) -> None:
    cell, projected = RecurrentCell(kind, 3).to(dtype), torch.randn(3, 5, GATES[kind] * 3, dtype=dtype)
    for mask in (MASK[..., None], MASK[None], torch.ones(3, 6).bool(), torch.ones(1, 5).bool(), MASK.float(), MASK.tolist()):
        with pytest.raises(ShapeError, match=r"^RecurrentCell\.run: .*mask"):
            cell.run(projected, cell.initial(3), mask=mask)  # type: ignore[arg-type]
    for lengths in (LENGTHS[None], LENGTHS[:1], torch.tensor(5), LENGTHS[:, None]):
        with pytest.raises(ShapeError, match=r"^RecurrentEncoder: expected embedded \(B, S, E\) and lengths \(B,\), found"):
            encoder(kind)(torch.randn(3, 5, 4), lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_calls_name_the_cell_and_the_argument(kind: Any) -> None:
    cell, zero = RecurrentCell(kind, 3), torch.zeros(2, 3)
    projected, state = torch.randn(2, 4, GATES[kind] * 3), cell.initial(2)
    wrongs: list[Any] = [zero, (), (zero,) * 3, None]
    for wrong in wrongs:
        for call in (lambda wrong=wrong: cell.run(projected, wrong), lambda wrong=wrong: cell(projected[:, 0], wrong)):
            with pytest.raises(ShapeError, match=r"^RecurrentCell(\.run)?: state must be \(hidden,"):
                call()
    for other in (projected[..., :-1], torch.cat([projected, projected], -1)):
        with pytest.raises(
            ShapeError, match=f"^RecurrentCell.run: a {kind} of 3 reads {GATES[kind] * 3} gate inputs and states of 3, found"
        ):
            cell.run(other, state)
    with pytest.raises(ConfigError, match="run: backward may be True or False, found 'false'"):
        cell.run(projected, state, backward="false")  # type: ignore[arg-type]
    for size in (-1, "2", 2.0):
        with pytest.raises(ConfigError, match="batch_size must be a whole number of at least 0"):
            cell.initial(size)  # type: ignore[arg-type]


def test_a_stack_has_a_state_for_each_layer_and_a_second_input_if_it_says_so() -> None:
    for extra_dim, extra, told in ((4, None, "extra must be a tensor, found None"), (0, torch.ones(2, 1, 4), "extra must be None without")):
        stack = RecurrentStack("gru", 3, 5, num_layers=2, extra_dim=extra_dim, dropout=0.0)
        layers, gates = (RecurrentCell("gru", 5).initial(2),) * 2, stack.project(torch.ones(2, 3, 3))
        given = torch.ones(2, 1, 4) if extra_dim else None
        for wrong in (layers[:1], layers * 2):
            with pytest.raises(ShapeError, match="expected a state for each of 2 layers, found"):
                stack.run(gates, wrong, given)
        with pytest.raises(ShapeError, match=told):
            stack.run(gates, layers, extra)
        with pytest.raises(ShapeError, match=told):
            stack(gates[:, 0], layers, None if extra is None else extra[:, 0])


def test_a_second_input_of_other_axes_is_refused() -> None:
    stack = RecurrentStack("lstm", 4, 5, num_layers=1, extra_dim=3, dropout=0.0)
    layers, gates = (RecurrentCell("lstm", 5).initial(6),), stack.project(torch.randn(6, 6, 4))
    whole = torch.randn(6, 6, 3)
    assert torch.equal(stack.run(gates, layers, whole[:, :1])[0], stack.run(gates, layers, whole[:, :1].expand(6, 6, 3))[0])
    for extra in (whole[0], whole[:1], whole[:5], whole[..., :2], whole[:, :2]):
        with pytest.raises(ShapeError, match=r"extra must be \(6, 6, 3\), beside gates \(6, 6, 20\), or 1 in its last axis"):
            stack.run(gates, layers, extra)
    for wrong in (None, [1.0], "a"):
        with pytest.raises(ShapeError, match=r"^RecurrentStack(\.run)?: (extra|gates) must be a tensor, found"):
            stack.run(gates, layers, wrong)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match=r"^RecurrentStack.run: gates must be a tensor, found"):
            stack.run(wrong, layers, whole)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match=r"expected a state for each of 1 layer, found"):
            stack.run(gates, wrong and 3, whole)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_refuses_other_dtypes_than_its_own(kind: Any) -> None:
    cell, projected = RecurrentCell(kind, 3), torch.randn(2, 4, GATES[kind] * 3)
    doubled = tuple(part.double() for part in cell.initial(2))
    calls = [lambda: cell.run(projected.double(), cell.initial(2)), lambda: cell.run(projected, doubled)]
    for call in (*calls, lambda: cell(projected[:, 0], doubled)):
        with pytest.raises(ShapeError, match=r"^RecurrentCell.*: projected and state must be torch.float32 as the cell is, found torch"):
            call()


class Masked(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell = RecurrentCell(kind, 3)

    def forward(self, projected: Tensor, mask: Tensor) -> Tensor:
        return self.cell.run(projected, self.cell.initial(projected.shape[0]), mask=mask)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_traced_layer_takes_other_masks(kind: Any) -> None:
    layer, projected, other = Masked(kind), torch.randn(3, 5, GATES[kind] * 3), torch.arange(5) < torch.tensor([[2], [5], [4]])
    whole = torch.ones(3, 5).bool()
    program = torch.export.export(layer, (projected, whole)).module()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    traced: Any = torch.jit.trace(layer, (projected, whole))
    for mask in (whole, MASK, other):
        expected = layer(projected, mask)
        for found in (program, compiled, traced):
            torch.testing.assert_close(found(projected, mask), expected)
    several = torch.stack([MASK, other])
    torch.testing.assert_close(
        torch.vmap(lambda mask: layer(projected, mask))(several), torch.stack([layer(projected, mask) for mask in several])
    )
    assert layer.to("meta")(projected.to("meta"), MASK.to("meta")).shape == (3, 5, 3)


class FirstResult(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Tensor) -> Tensor:
        return self.module(*given)[0]


class Kept(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention: Any = attention

    def forward(self, query: Tensor, key_mask: Tensor) -> Tensor:
        return self.attention.attend(query, self.attention.memory(query, query, key_mask=key_mask)).context


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", [*KINDS, "one head", "heads"])
def test_a_trace_passes_its_own_check_with_and_without_gradients(name: Any, gradients: bool) -> None:
    states, mask = torch.randn(3, 5, 4), MASK
    if name in KINDS:
        module, given = FirstResult(encoder(name)), (states, LENGTHS)
    else:
        module, given = Kept(Attention(DotScore()) if name == "one head" else MultiHeadAttention(4, 2)), (states, mask)
    with torch.set_grad_enabled(gradients):
        traced: Any = torch.jit.trace(module, given)
        torch.testing.assert_close(traced(*given), module(*given))


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_is_exported_and_compiled_as_one_graph(kind: Any) -> None:
    module, embedded, others = encoder(kind), torch.randn(3, 5, 4), torch.tensor([2, 5, 3])
    program = torch.export.export(module, (embedded, LENGTHS)).module()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for lengths in (LENGTHS, others):
        expected = module(embedded, lengths).states
        torch.testing.assert_close(program(embedded, lengths).states, expected)
        torch.testing.assert_close(compiled(embedded, lengths).states, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_padding_reaches_no_gradient(kind: Any, dtype: torch.dtype) -> None:
    cell, projected = (
        RecurrentCell(kind, 3).to(dtype),
        torch.randn(3, 5, GATES[kind] * 3, dtype=dtype).masked_fill(~MASK[..., None], torch.nan),
    )
    projected.requires_grad_()
    cell.run(projected, cell.initial(3), mask=MASK)[0].sum().backward()
    assert projected.grad is not None
    assert cell.weight.grad is not None
    assert projected.grad.isfinite().all()
    assert cell.weight.grad.isfinite().all()
    module = encoder(kind, num_layers=2).to(dtype)
    embedded = torch.randn(3, 5, 4, dtype=dtype).masked_fill(~MASK[..., None], torch.nan).requires_grad_()
    module(embedded, LENGTHS).states.sum().backward()
    assert embedded.grad is not None
    assert embedded.grad.isfinite().all()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_have_a_gradient_of_no_steps(kind: Any) -> None:
    cell, projected = RecurrentCell(kind, 3), torch.randn(2, 0, GATES[kind] * 3, requires_grad=True)
    output, state = cell.run(projected, cell.initial(2))
    output.sum().backward()
    assert output.shape == (2, 0, 3)
    assert len(state) == len(cell.initial(2))
    assert projected.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_and_overridden_steps_are_called(kind: Any) -> None:
    class Doubled(RecurrentCell):
        def forward(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return super().forward(2 * projected, state)

    torch.manual_seed(1)
    cell = RecurrentCell(kind, 3)
    doubled = Doubled(kind, 3)
    doubled.load_state_dict(cell.state_dict())
    projected, calls = torch.randn(2, 4, GATES[kind] * 3), list[Any]()
    torch.testing.assert_close(doubled.run(projected, cell.initial(2))[0], cell.run(2 * projected, cell.initial(2))[0])
    hook = cell.register_forward_hook(lambda module, given, found: calls.append(found[0].shape))
    cell.run(projected, cell.initial(2))
    assert calls == [(2, 3)] * 4
    hook.remove()
    cell.run(projected, cell.initial(2))
    assert len(calls) == 4
    hook = register_module_forward_hook(lambda module, given, found: calls.append(None) if module is cell else None)
    cell.run(projected, cell.initial(2))
    hook.remove()
    assert len(calls) == 8
    step = cell.forward
    cell.forward = lambda *given: calls.append(None) or step(*given)  # type: ignore[method-assign]
    cell.run(projected, cell.initial(2))
    assert len(calls) == 12


def test_frozen_layers_keep_nothing_for_a_gradient() -> None:
    cell, projected = RecurrentCell("lstm", 16).requires_grad_(False), torch.randn(4, 64, 64)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        frozen = cell.run(projected, cell.initial(4))[0]
        assert not saved
        learned = cell.requires_grad_(True).run(projected, cell.initial(4))[0]
    assert saved
    assert torch.equal(frozen, learned)


def test_a_bfloat16_lstm_is_about_as_exact_as_torch() -> None:
    errors = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        torch.manual_seed(seed)
        theirs, cell, inputs = nn.LSTM(32, 64, batch_first=True).bfloat16(), RecurrentCell("lstm", 64), GateInput(32, "lstm", 64)
        weights = theirs.state_dict()
        cell.weight.data, inputs.weight.data = weights["weight_hh_l0"].clone(), weights["weight_ih_l0"].clone()
        inputs.bias.data = weights["bias_ih_l0"] + weights["bias_hh_l0"]
        exact = nn.LSTM(32, 64, batch_first=True).double()
        exact.load_state_dict({name: part.double() for name, part in weights.items()})
        x = torch.randn(8, 40, 32).bfloat16()
        expected = exact(x.double())[0]
        ours = cell.run(inputs(x), tuple(part.bfloat16() for part in cell.initial(8)))[0]
        errors += torch.stack([(found.double() - expected).abs().mean() for found in (ours, theirs(x)[0])])
    assert errors[0] < 1.7 * errors[1]
