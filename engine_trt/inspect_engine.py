"""Reading back what became of a graph: the parsed network, what the compiler made of it, and the finished engine.

Without a GPU an engine cannot be opened, not even to look at it. Everything else can be read: the network that was
parsed, and the list of compiled layers that TensorRT-RTX's builder writes to its log, in which one sees whether the
cache is written in place and whether quantised weights are restored inside their product.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_planner.engines.decoder_config import ModelError

from .bindings import Network, Tensor
from .trt_module import TensorRt

_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}
_LAYER = re.compile(r"Name: (?P<name>[^\n]+?), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*?)\], Constants: "
                    r"\[(?P<constants>.*?)\], Outputs: \[(?P<outputs>.*?)\], TacticName", re.DOTALL)  # fmt: skip
_TENSOR = re.compile(r"Name: (?P<name>.+?)(?: \[profile \d+\])?, Dimensions: \[(?P<shape>[^\]]*)\]")


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a network, all profiles together; all 0 where it did not say.

    Attributes:
        layers: kernels, copies and waits of a pass.
        fused_attentions: kernels that are a whole attention.
        in_place: outputs of the cache that some kernel reads and writes under one name, per profile.
        restored_apart: matrices that are restored from their codes by a kernel of their own.
    """

    layers: int = 0
    fused_attentions: int = 0
    in_place: int = 0
    restored_apart: int = 0


def check_network(trt: TensorRt, definition: Any, network: Network, graph: Path, advice: str) -> None:
    """Compare a parsed network with the manifest; ``advice``: what else to try than to export it again.

    Raises:
        ModelError: names, shapes or types differ, or the cache is not written in place where it should be.
    """
    found = [definition.get_input(index) for index in range(definition.num_inputs)]
    problems = _differences([_seen(tensor, False) for tensor in found], network.inputs)
    found = [definition.get_output(index) for index in range(definition.num_outputs)]
    problems += _differences([_seen(tensor, True) for tensor in found], network.outputs)
    in_place = getattr(trt.api.LayerType, "KV_CACHE_UPDATE", None)
    updates = sum(definition.get_layer(index).type == in_place for index in range(definition.num_layers))
    if updates != len(network.aliases):
        problems.append(f"{updates} of {len(network.aliases)} cache updates are in place")
    if problems:
        raise ModelError(
            f"{graph} was read as something else ({'; '.join(problems[:4])}): export it again, or {advice}"
        )


def check_engine(trt: TensorRt, engine: Any, network: Network, plan: Path) -> None:
    """Compare an opened engine with the manifest: names, shapes, types, profiles and what lies where.

    Raises:
        ModelError: they differ.
    """
    modes = trt.api.TensorIOMode
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    seen = {
        name: Tensor(name, engine.get_tensor_mode(name) == modes.OUTPUT, _type(engine.get_tensor_dtype(name)),
                     tuple(engine.get_tensor_shape(name)))
        for name in names
    }  # fmt: skip
    for_input = [tensor for tensor in seen.values() if not tensor.output]
    problems = _differences(for_input, network.inputs)
    problems += _differences([tensor for tensor in seen.values() if tensor.output], network.outputs)
    if engine.num_optimization_profiles != len(network.profiles):
        problems.append(f"{engine.num_optimization_profiles} profiles, expected {len(network.profiles)}")
    elif not problems:
        for index in range(len(network.profiles)):
            for tensor in network.inputs:
                shapes = tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(tensor.name, index))
                if any(isinstance(extent, str) for extent in tensor.shape) and shapes != network.shapes(index, tensor):
                    problems.append(f"{tensor.name} goes from {shapes[0]} to {shapes[2]} in profile {index}")
        if hasattr(engine, "get_aliased_input_tensor"):
            problems += [
                f"{output} does not lie where {past} does"
                for output, past in network.aliases.items()
                if engine.get_aliased_input_tensor(output) != past
            ]
    if problems:
        raise ModelError(f"{plan} is not the engine its manifest describes ({'; '.join(problems[:4])}): build it again")


def compiled(lines: Sequence[str], network: Network) -> Compiled:
    """What the builder's log says of the compiled layers."""
    text = next((line for line in lines if line.startswith("Layers:")), "")
    layers = [match.groupdict() for match in _LAYER.finditer(text)]
    reads = [_names(layer["inputs"]) for layer in layers]
    writes = [_names(layer["outputs"]) for layer in layers]
    return Compiled(
        layers=len(layers),
        fused_attentions=sum("mha" in layer["name"] for layer in layers),
        in_place=sum(len(read & write & set(network.aliases)) for read, write in zip(reads, writes, strict=True)),
        restored_apart=sum(_restores(layer) for layer in layers),
    )


def _restores(layer: dict[str, str]) -> bool:
    """Whether a layer makes a matrix of constants alone."""
    shapes = [match["shape"] for match in _TENSOR.finditer(layer["outputs"])]
    return (
        not layer["inputs"].strip()
        and bool(layer["constants"].strip())
        and any(shape.count(",") == 1 and "-1" not in shape for shape in shapes)
    )


def _names(text: str) -> set[str]:
    return {match["name"] for match in _TENSOR.finditer(text)}


def _seen(tensor: Any, output: bool) -> Tensor:
    return Tensor(tensor.name, output, _type(tensor.dtype), tuple(tensor.shape))


def _type(dtype: Any) -> str:
    name = str(dtype).rsplit(".", 1)[-1]
    return _TYPES.get(name, name)


def _differences(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[str]:
    """One phrase per tensor that is missing, unexpected or different."""
    have = {tensor.name: tensor for tensor in found}
    problems = [f"unexpected {name}" for name in have if name not in {tensor.name for tensor in expected}]
    for tensor in expected:
        shape = tuple(-1 if isinstance(extent, str) else extent for extent in tensor.shape)
        if tensor.name not in have:
            problems.append(f"missing {tensor.name}")
        elif (have[tensor.name].shape, have[tensor.name].dtype) != (shape, tensor.dtype):
            mine = have[tensor.name]
            problems.append(f"{tensor.name} is {mine.dtype} {mine.shape}, expected {tensor.dtype} {shape}")
    return problems
