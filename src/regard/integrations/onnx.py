"""Exports a run as ONNX files, which engines in many languages run; needs the extra `onnx`.

A folder holds `encoder.onnx` and `step.onnx`, or `model.onnx` for labels, the run's vocabulary files, and `interface.json`, which names
every input and output, the special tokens and the limits. `docs/export.md` walks through one batch.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.data.lines import single_line
from regard.errors import CheckpointError, missing_extra
from regard.integrations.graph import OPSET, Graph, ModelGraphs, Port
from regard.integrations.graph_models import model_graphs
from regard.integrations.portable_run import check_output, check_weights, describe, new_folder, open_run, shortlist_of
from regard.strict_json import dump_json, parse_json
from regard.tasks.shortlist import FILE as SHORTLIST

__all__ = ["OnnxModel", "OnnxState", "export_run", "write_graphs"]

WeightKind = Literal["float32", "float16", "int8"]
INTERFACE = "interface.json"
# Readable by onnx 1.17 and onnxruntime 1.18; opset 17 needs no later ones.
IR_VERSION = 8
_TYPES = {"float32": 1, "int64": 7, "int32": 6, "bool": 9}  # of TensorProto


def export_run(run: str | Path, folder: str | Path, *, weights: WeightKind = "float32") -> None:
    """Write a trained run as a folder of ONNX files.

    Args:
        run: a run folder of any task.
        folder: must not exist, or must be empty.
        weights: storage of matrices. float16 halves the files and computes in float32; int8 computes in int8 with dynamic scales.

    Raises:
        CheckpointError: the run cannot be opened.
        ConfigError: the folder is not empty, or a part of the model cannot be exported; the message names it.

    Example:
        >>> export_run("no-such-run", "out")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    opened = open_run(Path(run))
    out = Path(folder)
    check_output(out)
    graphs = model_graphs(opened.model)
    check_weights(graphs, weights)
    described = describe(opened, graphs)
    for name, graph in described["graphs"].items():
        graph["file"] = f"{name}.onnx"
    described["weights"] = weights
    shortlist = shortlist_of(opened)
    with new_folder(out) as new:
        write_graphs(graphs, new, weights=weights)
        (new / INTERFACE).write_text(dump_json(described, indent=1) + "\n", encoding="utf-8")
        for name in set(opened.vocabularies.values()):
            shutil.copy(opened.folder / name, new / name)
        if shortlist is not None:
            (new / SHORTLIST).write_bytes(shortlist.to_bytes())


def _library() -> Any:
    try:
        import onnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_extra("an export to ONNX needs onnx", "onnx") from error
    return onnx


def _engine() -> Any:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing_extra("an exported model needs onnxruntime", "onnx") from error
    return onnxruntime


def write_graphs(graphs: ModelGraphs, folder: Path, *, weights: WeightKind = "float32") -> None:
    """Write each graph as an ONNX file into an existing folder.

    Args:
        graphs: from `regard.integrations.graph_models.model_graphs`.
        folder: destination.
        weights: see `export_run`.
    """
    onnx = _library()
    for name, graph in graphs.graphs.items():
        path = folder / f"{name}.onnx"
        model = _model(onnx, graph, name, weights)
        if weights != "int8":
            onnx.save(model, str(path))
            continue
        _engine()
        from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]

        with tempfile.TemporaryDirectory() as scratch:
            # Avoids a warning that the graph should be simplified first.
            onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
            onnx.save(model, f"{scratch}/whole.onnx")
            operators = ["MatMul", "Gather"]
            quantize_dynamic(
                f"{scratch}/whole.onnx", str(path), per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=operators
            )


def _model(onnx: Any, graph: Graph, name: str, weights: WeightKind) -> Any:
    helper, nodes, tensors, transposed = onnx.helper, list[Any](), dict[str, Any](), dict[str, Tensor]()
    for node in graph.nodes:
        attributes = dict(node.attributes)
        if node.operator == "Cast":
            attributes["to"] = _TYPES[str(attributes["to"])]
        if weights == "int8" and node.operator == "Transpose" and node.inputs[0] in graph.used:
            # A matrix shared with an embedding must be stored as a factor of the product; otherwise it would stay float32.
            transposed[node.outputs[0]] = graph.used[node.inputs[0]].mT.contiguous()
            continue
        nodes.append(helper.make_node(node.operator, list(node.inputs), list(node.outputs), **attributes))
    for own, tensor in {**graph.used, **transposed}.items():
        halved = weights == "float16" and tensor.dtype == torch.float32 and tensor.dim() > 1
        if halved:
            tensors[f"{own}.half"] = tensor.half().numpy()
            nodes.insert(0, helper.make_node("Cast", [f"{own}.half"], [own], to=_TYPES["float32"]))
        else:
            tensors[own] = tensor.contiguous().numpy()
    read = {tensor for node in nodes for tensor in node.input}
    initializers = [onnx.numpy_helper.from_array(array, own) for own, array in tensors.items() if own in read]
    content = helper.make_graph(nodes, name, _ports(onnx, graph.inputs), _ports(onnx, graph.outputs), initializers)
    return helper.make_model(content, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="regard")


def _ports(onnx: Any, ports: list[Port]) -> list[Any]:
    return [onnx.helper.make_tensor_value_info(port.name, _TYPES[port.kind], list(port.axes)) for port in ports]


@dataclass(frozen=True)
class OnnxState:
    """State of the hypotheses of a batch, for `regard.decoding`.

    Attributes:
        sources: one entry per sentence.
        states: (B, K, ...), one per hypothesis.
        position: number of tokens read.
    """

    sources: Mapping[str, Any]
    states: Mapping[str, Any]
    position: int = 0

    def select(self, rows: Tensor, beams: Tensor) -> OnnxState:
        """Keep sentences `rows` (B',) and continue their hypotheses `beams` (B', K')."""
        kept, going = rows.numpy(), beams.numpy()
        # Most steps keep every sentence: sources are not copied then.
        same = len(kept) == next(iter(self.states.values())).shape[0]
        sources = {name: part if same or _shared(name, part) else part[kept] for name, part in self.sources.items()}
        return replace(self, sources=sources, states={name: part[kept[:, None], going] for name, part in self.states.items()})


def _shared(name: str, part: Any) -> bool:
    # The number of items, and the area mask of a memory without padding, are the same for every sentence.
    return name.endswith(".size") or (name.endswith(".mask") and part.shape[0] == 1)


class OnnxModel:
    """An exported model, run by onnxruntime on the CPU; a `Step` of `regard.decoding`.

    Args:
        folder: written by `export_run`.
        threads: threads per operator.

    Attributes:
        interface: content of `interface.json`.

    Raises:
        CheckpointError: the folder holds no exported model; the message names the file.

    Example:
        >>> OnnxModel("no-such-folder")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-folder/interface.json: missing or damaged; expected a folder of `regard export --format onnx`
    """

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        path = Path(folder) / INTERFACE
        try:
            self.interface: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
            files = {name: str(Path(folder) / graph["file"]) for name, graph in dict(self.interface["graphs"]).items()}
            if not files:
                raise ValueError("no graphs")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: missing or damaged; expected a folder of `regard export --format onnx`") from error
        onnxruntime = _engine()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._sessions: dict[str, Any] = {}
        for name, file in files.items():
            try:
                self._sessions[name] = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            except Exception as error:  # the runtime has classes of its own
                raise CheckpointError(f"{file}: missing or damaged; export it again ({single_line(str(error))[:200]})") from error

    def run(self, graph: str, given: Mapping[str, Any], outputs: list[str] | None = None) -> dict[str, Any]:
        """Run a graph and return all or the requested outputs by name.

        Args:
            graph: "encoder", "step" or "model".
            given: all inputs as arrays.
            outputs: names.
        """
        names = outputs or [port["name"] for port in self.interface["graphs"][graph]["outputs"]]
        return dict(zip(names, self._sessions[graph].run(names, dict(given)), strict=True))

    def start(self, **inputs: Tensor) -> OnnxState:
        """Encode sources: tokens (B, S) and lengths (B,), images, features, or for a language model the batch size (1,)."""
        found = self.run("encoder", {name: value.numpy() for name, value in inputs.items()})
        sources, states = ({name: found[name] for name in self.interface[kind]} for kind in ("sources", "states"))
        return OnnxState(sources, states)

    def step(self, tokens: Tensor, state: OnnxState) -> tuple[Tensor, Tensor | None, OnnxState]:
        """Read the last token of each hypothesis (B, K); return logits (B, K, V), weights (B, K, S) or None, and the new state."""
        given = {"tokens": tokens.contiguous().numpy(), "position": np.array(state.position), **state.sources, **state.states}
        found = self.run("step", given)
        states = {name: found["next." + name.removeprefix("state.")] for name in state.states}
        weights = torch.from_numpy(found["weights"]) if "weights" in found else None
        return torch.from_numpy(found["logits"]), weights, replace(state, states=states, position=state.position + 1)
