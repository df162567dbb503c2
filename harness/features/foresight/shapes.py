"""The shape of one size of a training: how many ranks, how they are cut, and the batch of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from typing import Any

from harness.features.foresight.physics.collectives import CollectiveKind
from harness.features.foresight.physics.schedules import PipelineSchedule


class KeptStates(StrEnum):
    """The parts of the model's state that the ranks of a data-parallel group hold."""

    WHOLE = "whole"  # gradients are all-reduced
    OPTIMIZER_CUT = "optimizer cut"  # gradients reduce-scattered, parameters all-gathered
    ALL_CUT = "all cut"  # parameters are gathered for each forward and backward
    NODE_CUT = "cut in nodes"  # the same within a node; gradients are all-reduced between nodes


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's size; None where a table does not say.

    ``trains``: parameters that do (None: all). ``keys``: the width of a layer's keys, which is that
    of its values (None: the hidden size); fewer heads have them than ask.
    """

    name: str = ""
    params: float | None = None
    trains: float | None = None
    layers: int | None = None
    hidden: int | None = None
    keys: int | None = None

    @property
    def width(self) -> float | None:
        """The hidden size, from P = 12 L h^2 of a transformer where it is not stated."""
        if self.hidden is not None or not (self.params and self.layers):
            return self.hidden
        return sqrt(self.params / (12 * self.layers))

    @property
    def trained(self) -> float | None:
        """Parameters that have gradients and an optimizer's state."""
        return self.params if self.trains is None else self.trains

    def flops_per_token(self, seq: int) -> float | None:
        """6 P, and 12 L h s for attention where layers are known (Narayanan et al., SC'21); 4 P of
        parameters that do not train.
        """
        if self.params is None:
            return None
        attention = 12 * self.layers * self.hidden * seq if self.layers and self.hidden else 0
        return 4 * self.params + 2 * (self.trained or 0.0) + attention


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The bytes that all ranks together exchange in a step by a strategy's word, as nccl-tests
    count them.

    ``num_bytes`` are those of any world, ``of_rank`` those that every rank adds: what an all-gather
    collects of compressed gradients grows with the world. They go out in ``pieces``.
    """

    kind: CollectiveKind
    num_bytes: float
    of_rank: float = 0.0
    pieces: int = 1

    def at(self, ranks: int) -> float:
        return self.num_bytes + self.of_rank * ranks


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One size of one training. Ranks = data x tensor x context x stages.

    ``micros`` micro-batches of ``micro_batch`` samples go through each replica in a step. ``sent``
    is what its strategy states; without it the exchange follows from ``kept``. ``hides``: compute
    goes on meanwhile. Where all ranks share one machine's ``cores``, each needs them for ``cpu_s``
    of a step; 0 cores: nobody shares any.
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
    #: What else must be the same for two points to tell of each other: software, precision, ...
    configuration: tuple[tuple[str, str], ...] = ()

    @property
    def replicas(self) -> float:
        """Data-parallel ranks."""
        return self.ranks / (self.tensor * self.context * self.stages)

    @property
    def queued_s(self) -> float:
        """For how long a rank waits in a step for cores that others use."""
        return self.cpu_s * max(0.0, self.ranks / self.cores - 1) if self.cores else 0.0

    @property
    def samples(self) -> float:
        """Samples of one step, of all ranks."""
        return self.replicas * self.micros * self.micro_batch

    @property
    def flops(self) -> float:
        """Of one step; in samples where the model's size is unknown."""
        of_token = self.model.flops_per_token(self.seq)
        return self.samples * (1.0 if of_token is None else of_token * self.seq)

    def rate(self, step_s: float) -> float:
        """Useful FLOP/s of one rank; samples/s where the model's size is unknown."""
        return self.flops / (self.ranks * step_s)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size and what it reached: ``step_s`` seconds a step, None where that is asked for.

    ``log_sd`` is the standard deviation of its ln, by launches that differ; 0 where nobody says.
    """

    shape: Shape
    step_s: float | None
    calibrates: bool = False
    log_sd: float = 0.0
    #: The share of a stage's step that is idle, where a profile of this very run states it.
    bubble: float | None = None
    #: The row of the file that it is from.
    row: Mapping[str, Any] = field(default_factory=dict, compare=False)
