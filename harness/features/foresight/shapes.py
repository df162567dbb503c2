"""The shape of one size of a training run: its ranks, how they are divided, and their batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from typing import Any

from harness.features.foresight.physics.collectives import CollectiveKind
from harness.features.foresight.physics.schedules import PipelineSchedule


class KeptStates(StrEnum):
    """How the state of the model is divided among the ranks of a data-parallel group."""

    WHOLE = "whole"  # gradients are all-reduced
    OPTIMIZER_CUT = "optimizer cut"  # gradients are reduce-scattered, parameters all-gathered
    ALL_CUT = "all cut"  # parameters are gathered for each forward and backward
    NODE_CUT = "cut in nodes"  # ALL_CUT inside a node; gradients are all-reduced between nodes


@dataclass(frozen=True, kw_only=True)
class Model:
    """The size of a model; None for what a table does not state.

    ``trains`` is the number of trained parameters (None: all). ``keys`` is the width of a layer's
    keys, which equals that of its values (None: the hidden size). It is smaller than the hidden
    size with grouped-query attention.
    """

    name: str = ""
    params: float | None = None
    trains: float | None = None
    layers: int | None = None
    hidden: int | None = None
    keys: int | None = None

    @property
    def width(self) -> float | None:
        """Return the hidden size, computed from P = 12 L h^2 of a transformer if it is
        not stated.
        """
        if self.hidden is not None or not (self.params and self.layers):
            return self.hidden
        return sqrt(self.params / (12 * self.layers))

    @property
    def trained(self) -> float | None:
        """Return the number of parameters that have gradients and optimizer state."""
        return self.params if self.trains is None else self.trains

    def flops_per_token(self, seq: int) -> float | None:
        """Return the FLOPs per token: 6 P, plus 12 L h s for attention if layers and hidden size
        are known.

        The formula is from Narayanan et al. (SC'21). Parameters that are not trained count 4 P.
        """
        if self.params is None:
            return None
        attention = 12 * self.layers * self.hidden * seq if self.layers and self.hidden else 0
        return 4 * self.params + 2 * (self.trained or 0.0) + attention


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The bytes that all ranks together exchange in a step, as the strategy states them.

    Bytes are counted as nccl-tests does: ``num_bytes`` + ``of_rank`` * ranks. ``of_rank`` is above
    0 if the bytes grow with the world, as in an all-gather of compressed gradients. ``pieces`` is
    the number of collectives that exchange these bytes.
    """

    kind: CollectiveKind
    num_bytes: float
    of_rank: float = 0.0
    pieces: int = 1

    def at(self, ranks: int) -> float:
        return self.num_bytes + self.of_rank * ranks


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One size of one training run. Ranks = data x tensor x context x stages.

    In a step ``micros`` micro-batches of ``micro_batch`` samples go through each replica. ``sent``
    is the exchange that the strategy states; otherwise the exchange follows from ``kept``.
    ``hides`` says whether compute continues during the exchange. If all ranks use the ``cores`` of
    one machine, each rank needs ``cpu_s`` seconds of core time in a step. ``cores`` is 0 if the
    ranks do not compete for cores.
    """

    ranks: int
    tensor: int = 1
    context: int = 1
    stages: int = 1
    chunks: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_EACH
    micros: int = 1
    micro_batch: float = 1.0
    seq: int = 2048
    kept: KeptStates = KeptStates.WHOLE
    sent: tuple[Sent, ...] = ()
    hides: bool = True
    cpu_s: float = 0.0
    cores: int = 0
    model: Model = Model()
    #: Further properties that must be equal for one point to predict another, such as software and
    #: precision.
    configuration: tuple[tuple[str, str], ...] = ()

    @property
    def replicas(self) -> float:
        """Return the number of data-parallel ranks."""
        return self.ranks / (self.tensor * self.context * self.stages)

    @property
    def queued_s(self) -> float:
        """Return the seconds of a step for which a rank waits for cores that other ranks use."""
        return self.cpu_s * max(0.0, self.ranks / self.cores - 1) if self.cores else 0.0

    @property
    def samples(self) -> float:
        """Return the samples of one step over all ranks."""
        return self.replicas * self.micros * self.micro_batch

    @property
    def flops(self) -> float:
        """Return the FLOPs of one step, or its samples if the size of the model is unknown."""
        of_token = self.model.flops_per_token(self.seq)
        return self.samples * (1.0 if of_token is None else of_token * self.seq)

    def rate(self, step_s: float) -> float:
        """Return the useful FLOP/s of one rank, or samples/s if the size of the model
        is unknown.
        """
        return self.flops / (self.ranks * step_s)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size and its measured ``step_s`` (seconds per step), or None if it is to be predicted.

    ``log_sd`` is the standard deviation of ln(step_s) between launches, or 0 if unknown.
    """

    shape: Shape
    step_s: float | None
    calibrates: bool = False
    log_sd: float = 0.0
    #: Share of a stage's step that is idle, if a profile of this run states it.
    bubble: float | None = None
    #: The row of the file from which the point was read.
    row: Mapping[str, Any] = field(default_factory=dict, compare=False)
