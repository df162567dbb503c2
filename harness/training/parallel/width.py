"""Tensor parallelism along ``tp``: layers are split by width (Megatron-LM, Shoeybi et al., 2019).

Between these layers the sequence can be split, too (Korthikanti et al., 2022). A model file states
with ``TENSOR`` how its layers are split.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from harness.cases import CaseSpec, Dim
from harness.training.context import RankContext
from harness.training.parallel import groups, traffic
from harness.training.parallel.traffic import Traffic

#: Bytes of each value that the loss all-reduces. The values are fp32 for any precision of logits.
FP32 = 4.0


class Cut(StrEnum):
    """The ways to split a layer.

    ``column`` splits the outputs of the layer, and ``row`` splits its inputs. ``vocabulary`` splits
    the rows of an embedding, and ``logits`` splits the classes of the last layer. A ``norm`` is not
    split, but may compute a part of the sequence.
    """

    COLUMN = "column"
    ROW = "row"
    VOCABULARY = "vocabulary"
    NORM = "norm"
    LOGITS = "logits"


def cuts(model: nn.Module) -> dict[str, Cut]:
    """Return how each layer is split, by its name; empty if the model does not state it."""
    stated = getattr(model, "tensor", None) or {"cut": {}}
    by_module = {}
    for name, _ in model.named_modules():
        for pattern, how in stated["cut"].items():
            if fnmatch.fnmatchcase(name, pattern):
                by_module[name] = Cut(how)
    return by_module


def check(model: nn.Module, case: CaseSpec, ranks: int, *, sequence: bool, loss: bool) -> None:
    """Raise ValueError if the model cannot be split over ``ranks`` ranks with these options."""
    layers = cuts(model)
    if loss and Cut.LOGITS not in layers.values():
        raise ValueError("loss=True needs a model whose logits are split by class; use loss=False")
    if not layers:
        raise ValueError(
            "the model does not state how its layers are split; expected TENSOR in its head"
        )
    units = int(model.tensor["units"])  # type: ignore[index]
    if units % ranks:
        raise ValueError(f"{units} heads or columns do not divide evenly over tp:{ranks}")
    if sequence and Cut.VOCABULARY not in layers.values():
        raise ValueError("sequence=True needs a model with a sequence; use sequence=False")
    if case.checkpoint:
        raise ValueError(
            "checkpoint=True is not supported, because recomputed blocks would communicate again"
        )


def cut(model: nn.Module, ctx: RankContext, *, sequence: bool, loss: bool) -> None:
    """Split the model's layers over the ranks along ``tp``, in place."""
    styles = {
        name: _style(how, sequence, loss)
        for name, how in cuts(model).items()
        if how is not Cut.NORM or sequence
    }
    parallelize_module(model, groups.parameters(ctx, Dim.TP), styles)


def _style(how: Cut, sequence: bool, loss: bool) -> ParallelStyle:
    """Return torch's ParallelStyle for a layer that is split in this way.

    If ``sequence`` is set, each rank holds only a part of the sequence between split layers.
    """
    between = Shard(1) if sequence else Replicate()
    if how is Cut.COLUMN:
        return ColwiseParallel(input_layouts=between)
    if how is Cut.ROW:
        return RowwiseParallel(output_layouts=between)
    if how is Cut.VOCABULARY:
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if how is Cut.NORM:
        return SequenceParallel()
    logits = Shard(-1) if loss else Replicate()
    return ColwiseParallel(input_layouts=between, output_layouts=logits, use_local_output=not loss)


def blocks(model: nn.Module, ranks: int) -> list[list[Size]]:
    """Return the shapes of one rank's parameters, block by block."""
    layers = cuts(model) if ranks > 1 else {}
    by_block: dict[str, list[Size]] = {}
    for name, parameter in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        shape = list(parameter.shape)
        how = layers.get(layer)
        if how in (Cut.COLUMN, Cut.LOGITS, Cut.VOCABULARY):
            shape[0] //= ranks
        elif how is Cut.ROW and kind == "weight":
            shape[1] //= ranks
        by_block.setdefault(name.partition(".")[0], []).append(Size(shape))
    return list(by_block.values())


def placed(model: nn.Module, *, sequence: bool) -> tuple[str, ...]:
    """Return what ``samples.placements`` will return on a mesh that has only ``tp``."""
    layers = cuts(model)
    placements = set()
    for name, _ in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        how = layers.get(layer)
        if how is None or (how is Cut.NORM and not sequence):
            placements.add("plain")
        elif how is Cut.NORM or (how is Cut.ROW and kind == "bias"):
            placements.add(repr(Replicate()))
        else:
            placements.add(repr(Shard(1 if how is Cut.ROW else 0)))
    return tuple(sorted(placements))


def sent(
    model: nn.Module, inputs: Tensor, case: CaseSpec, ranks: int, *, sequence: bool, loss: bool
) -> Traffic:
    """Return the traffic of forward and backward along ``tp`` for these inputs.

    A layer that is split by columns all-reduces the gradient of its input, and a layer that is
    split by rows all-reduces its output. A transformer layer therefore has four all-reduces. With
    ``sequence`` an all-gather and a reduce-scatter replace each of them, and the gradients of
    parameters that are not split are all-reduced. With ``loss`` three values of each token are
    all-reduced: its largest logit, its sum of exponentials, and its loss.
    """
    total = Traffic()
    layers = cuts(model)
    if ranks == 1:
        return total
    for name, flow in _flowing(model, inputs):
        if (how := layers.get(name)) is None:
            continue
        if sequence:
            total += _whole_gradients(model.get_submodule(name), how, ranks)
        total += _activations(how, flow, case.backend, ranks, sequence)
        if how is Cut.LOGITS and loss:
            total += traffic.all_reduce(FP32 * flow.tokens, ranks) * 3
        elif how is Cut.LOGITS:
            total += traffic.all_gather(flow.out / ranks, ranks)
    return total


def _whole_gradients(layer: nn.Module, how: Cut, ranks: int) -> Traffic:
    """Return the traffic of the gradients of a layer's parameters that are not split.

    These gradients are all-reduced, because each rank has only a part of the sequence.
    """
    total = Traffic()
    for kind, parameter in layer.named_parameters():
        if how is Cut.NORM or (how is Cut.ROW and kind == "bias"):
            total += traffic.all_reduce(float(parameter.nbytes), ranks)
    return total


class Flow(NamedTuple):
    """The data that flow through a layer.

    ``into`` and ``out`` are the bytes of the layer's input and output, ``wanted`` states that the
    input needs a gradient, and ``tokens`` is the number of tokens.
    """

    into: float
    out: float
    wanted: bool
    tokens: float


def _activations(how: Cut, flow: Flow, backend: str, ranks: int, sequence: bool) -> Traffic:
    """Return the traffic of a layer's input and output in forward and backward."""
    total = Traffic()
    scatter = traffic.reduce_scatter(backend)
    if how in (Cut.COLUMN, Cut.LOGITS):
        if sequence:
            total += traffic.all_gather(flow.into / ranks, ranks)
        if flow.wanted:
            total += scatter(flow.into, ranks) if sequence else traffic.all_reduce(flow.into, ranks)
    if how in (Cut.ROW, Cut.VOCABULARY):
        total += scatter(flow.out, ranks) if sequence else traffic.all_reduce(flow.out, ranks)
        if sequence:
            total += traffic.all_gather(flow.out / ranks, ranks)
    return total


def _flowing(model: nn.Module, inputs: Tensor) -> Iterator[tuple[str, Flow]]:
    """Return the name of each layer, and the data that flow through it."""
    seen: dict[str, Flow] = {}
    handles = []
    for name, layer in model.named_modules():

        def note(_: nn.Module, given: tuple[Tensor, ...], out: Tensor, name: str = name) -> None:
            into = given[0]
            tokens = out.numel() / out.shape[-1]
            seen[name] = Flow(into.nbytes, out.nbytes, into.requires_grad, tokens)

        if not list(layer.children()):
            handles.append(layer.register_forward_hook(note))
    with torch.enable_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    return iter(seen.items())
