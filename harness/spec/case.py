"""What is measured: CaseSpec, Arm, Contrast, Protocol, Plan. Pure data, no torch.

Identity has one owner, ``CaseSpec.series``: id, hash, pytest id, threshold pattern and asv
parameters are all made from it. Settings (steps, blocks, hosts, time-outs, paths) never enter.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property

from harness.codec import Json, to_doc

#: Steps that a profiled launch traces.
PROFILED = 8
#: Kinds of baseline that a ratio can refer to.
BASELINES = (
    "plain", "wrapped", "one_node", "smallest_fit", "sum_of_devices", "rung", "other",
)  # fmt: skip


class Mode(StrEnum):
    """Weak: the batch grows with the world. Strong: the global batch is fixed."""

    WEAK = "weak"
    STRONG = "strong"


class Device(StrEnum):
    """Where ranks compute."""

    CPU = "cpu"
    CUDA = "cuda"


class Data(StrEnum):
    """Resident: batches lie on the device before the window. Loaded: every step makes its own."""

    RESIDENT = "resident"
    LOADED = "loaded"


class Precision(StrEnum):
    """fp32; bf16 parameters and gradients; or fp32 parameters under bf16 autocast."""

    FP32 = "fp32"
    BF16 = "bf16"
    AUTOCAST = "autocast"


class Optimizer(StrEnum):
    """What steps the parameters. SGD serves the gate: AdamW hides a wrong gradient scale."""

    SGD = "sgd"
    ADAMW = "adamw"


class StandIn(StrEnum):
    """What stands in for hardware that is not there; labelled wherever a result is shown."""

    PACED = "paced"
    EMULATED = "emulated"
    SHARED_GPU = "shared_gpu"


class Ablation(StrEnum):
    """What an ablated arm goes without, to see what it costs."""

    COMMUNICATION = "communication"
    DATA = "data"


class Role(StrEnum):
    """What an arm is for."""

    SUBJECT = "subject"
    BASELINE = "baseline"
    ABLATION = "ablation"
    CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class CaseSpec:
    """What is run: identity only, nothing about how often or how long it is measured.

    ``nodes`` is the number of ranks on each node: (8,), (4, 4), (4, 8, 16).
    ``micro_batch`` is samples per rank and forward pass; None = the model's own for its size.
    ``global_batch`` is required in strong mode and derived in weak mode.
    ``first_device`` is the device (or core) of local rank 0; each rank has ``devices_per_rank``.
    ``shares`` is how fast each rank's device is beside the others: the batch is cut accordingly,
    and gradients are weighted so that every sample counts alike; empty = all alike.
    ``stragglers`` is ``1:0.5`` for half of rank 1's core, several with commas: slow on purpose.
    ``communicate`` is False only for an ablation: collectives return at once, with wrong results.
    ``knobs`` maps "file.knob" to a value that differs from the file's default; ``environment``
    holds the variables of its backend that can change speed (not time-outs, not logs).
    """

    strategy: str
    model: str
    size: str
    mode: Mode
    world_size: int
    nodes: tuple[int, ...]
    device: Device
    backend: str
    micro_batch: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    accumulate: int = 1
    checkpoint: bool = False
    compressor: str | None = None
    stand_in: frozenset[StandIn] = frozenset()
    first_device: int = 0
    devices_per_rank: int = 1
    shares: tuple[float, ...] = ()
    stragglers: str = ""
    data: Data = Data.RESIDENT
    communicate: bool = True
    seed: int = 0
    knobs: Mapping[str, Json] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None

    @cached_property
    def series(self) -> Mapping[str, str]:
        """Ordered, string-valued identity: required fields, then those that differ from default."""
        doc = to_doc(self)
        required = ("strategy", "model", "size", "mode", "world_size", "nodes", "device", "backend")
        out = {key: _text(doc[key]) for key in required}
        for f in fields(self)[len(required) :]:
            if f.name in ("knobs", "environment"):
                own: Mapping[str, Json] = getattr(self, f.name) or {}
                out.update({k: _text(v) for k, v in sorted(own.items())})
            elif getattr(self, f.name) != f.default:
                out[f.name] = _text(doc[f.name])
        return out

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the sha256 of the series: a new field keeps every old hash."""
        return digest(dict(self.series))

    @cached_property
    def family(self) -> str:
        """The id without its world: ``ddp/decoder-tiny/weak``, what thresholds are matched on."""
        strategy = f"{self.strategy}:{self.compressor}" if self.compressor else self.strategy
        return f"{strategy}/{self.model}-{self.size}/{self.mode}"

    @cached_property
    def world(self) -> str:
        """``4cpu``, ``2x4gpu`` or ``4+8+16gpu``."""
        unit = "gpu" if self.device is Device.CUDA else "cpu"
        if len(self.nodes) == 1:
            return f"{self.world_size}{unit}"
        if len(set(self.nodes)) == 1:
            return f"{len(self.nodes)}x{self.nodes[0]}{unit}"
        return "+".join(map(str, self.nodes)) + unit

    @cached_property
    def extras(self) -> str:
        """``+precision=bf16+ddp.bucket_cap_mb=5``: what differs from default, in order."""
        named = {"strategy", "model", "size", "mode", "world_size", "nodes", "device"}
        named |= {"compressor", "stand_in", "backend"}
        out = [f"+{k}={v}" for k, v in self.series.items() if k not in named]
        usual = "nccl" if self.device is Device.CUDA else "gloo"
        return ("" if self.backend == usual else f"+backend={self.backend}") + "".join(out)

    @cached_property
    def slowed(self) -> Mapping[int, float]:
        """Ranks that are slow on purpose, and their share of a core; ValueError if unclear."""
        out: dict[int, float] = {}
        for part in filter(None, self.stragglers.split(",")):
            match = re.fullmatch(r"(\d+):(0?\.\d+)", part)
            if match is None or int(match[1]) >= self.world_size or float(match[2]) == 0:
                raise ValueError(f"stragglers: {part!r} is not RANK:SHARE with a share below 1")
            out[int(match[1])] = float(match[2])
        return out

    @cached_property
    def network(self) -> tuple[tuple[str, Json], ...]:
        """What the engine's network is set to for this case: names and values of its knobs."""
        if StandIn.EMULATED not in self.stand_in:
            return ()
        return tuple((k, v) for k, v in self.knobs.items() if k.startswith("emulated."))

    @cached_property
    def id(self) -> str:
        """``ddp/decoder-tiny/weak@4cpu+precision=bf16``"""
        return f"{self.family}@{self.world}{self.extras}"

    @cached_property
    def pytest_id(self) -> str:
        """The id with only characters that ``-k`` and node ids take."""
        text = f"{self.family.replace('-', '_').replace('/', '-')}-{self.world}{self.extras}"
        return text.translate(str.maketrans(":+=/", "_-__"))

    def at(self, world_size: int, nodes: tuple[int, ...] | None = None) -> CaseSpec:
        """The same case on another world: its first ranks, if these are unlike."""
        slow = [(p, p.partition(":")[0]) for p in self.stragglers.split(",")]
        return replace(
            self,
            world_size=world_size,
            nodes=nodes or (world_size,),
            shares=self.shares[:world_size] if world_size > 1 else (),
            stragglers=",".join(p for p, r in slow if not r.isdigit() or int(r) < world_size),
        )

    def knob(self, name: str, default: Json) -> Json:
        """The value of a knob, or the file's default."""
        return self.knobs.get(name, default)


def _text(value: Json) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How a global batch falls apart: each shard's micro-batch, ``accumulate`` times."""

    micros: tuple[int, ...]
    accumulate: int

    @property
    def shards(self) -> int:
        """Parts of a batch that are trained on side by side."""
        return len(self.micros)

    @property
    def largest(self) -> int:
        """Samples of the largest micro-batch."""
        return max(self.micros)

    @property
    def global_batch(self) -> int:
        """Samples that the whole world trains on in one optimizer step."""
        return sum(self.micros) * self.accumulate

    def place(self, shard: int) -> slice:
        """Where a shard's samples lie in a global batch."""
        start = sum(self.micros[:shard]) * self.accumulate
        return slice(start, start + self.micros[shard] * self.accumulate)

    def weight(self, shard: int) -> float:
        """What a shard's mean loss counts in the mean over shards, so that all samples count alike.

        1.0 where all shards are of one size.
        """
        return self.micros[shard] * self.shards / sum(self.micros)


def batching(case: CaseSpec, default_micro: int, *, whole: bool) -> Batching:
    """How a case's global batch falls apart; ValueError when it does not divide.

    ``whole`` strategies (pipeline) see the whole batch as one shard and cut it themselves.
    """
    if case.shares and whole:
        raise ValueError("this strategy has no shards of unequal size")
    shards = 1 if whole else case.world_size
    if case.mode is Mode.WEAK:
        total, rest = (case.micro_batch or default_micro) * case.world_size, 0
    else:
        assert case.global_batch is not None
        total, rest = divmod(case.global_batch, case.accumulate)
    micros = apportion(total, case.shares or (1.0,) * shards)
    if rest or min(micros) == 0 or (len(set(micros)) > 1 and not case.shares):
        raise ValueError(
            f"a batch of {case.global_batch or total} does not divide over {shards} shards"
            f" x {case.accumulate} accumulation steps"
        )
    return Batching(micros=micros, accumulate=case.accumulate)


def apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole parts of ``total`` in these proportions, by largest remainder (Hamilton)."""
    exact = [total * share / math.fsum(shares) for share in shares]
    parts = [math.floor(x) for x in exact]
    behind = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in behind[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A case with a role, measured once in every pass."""

    name: str
    case: CaseSpec
    role: Role


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One metric of a subject arm, as a ratio to its baseline arm(s), or absolute without them.

    ``against`` names the kind of baseline (plain, wrapped, one_node, smallest_fit,
    sum_of_devices, ...). Several baseline arms are added up. ``ideal`` is the ratio that
    perfect scaling would give; a ratio metric is shown divided by it.
    """

    name: str
    metric: str
    subject: str
    baseline: tuple[str, ...]
    against: str
    ideal: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """Steps of a launch: the first ``cut`` warm up, the last ``profiled`` are traced."""

    steps: int
    cut: int
    profiled: int = 0


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a plan is measured: settings, never identity.

    ``steps`` optimizer steps per launch, of which the first ``cut`` are warm-up: so a pilot runs,
    and a timed launch at least. A block is one pass over the arms and one back, two pairs per
    contrast; the judge looks after every block from ``min_blocks`` to ``max_blocks``.
    """

    steps: int
    cut: int
    min_blocks: int = 4
    max_blocks: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.cut < self.steps and 0 <= self.min_blocks <= self.max_blocks):
            raise ValueError(
                f"a protocol needs 0 <= cut < steps and min_blocks <= max_blocks: {self}"
            )


def digest(doc: Json) -> str:
    """16 hex digits of the sha256 of a document."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Arms measured in the same blocks, and the contrasts that are judged."""

    name: str
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    protocol: Protocol

    def arm(self, name: str) -> Arm:
        """The arm of that name; AssertionError if a recipe forgot it."""
        found = [a for a in self.arms if a.name == name]
        assert len(found) == 1, f"plan {self.name}: {len(found)} arms named {name!r}"
        return found[0]

    @property
    def pilot(self) -> Window:
        """What a pilot runs."""
        return Window(steps=self.protocol.steps, cut=self.protocol.cut)

    @property
    def profile(self) -> Window:
        """What a profiled launch runs: as many steps without the profiler as with it, for scale."""
        cut = self.protocol.cut
        return Window(steps=cut + 2 * PROFILED + 1, cut=cut, profiled=PROFILED)

    def only(self, wanted: Collection[Contrast]) -> Plan:
        """The same plan with these contrasts, and only the arms that they need."""
        names = {c.subject for c in wanted} | {b for c in wanted for b in c.baseline}
        kept = tuple(c for c in self.contrasts if c in wanted)
        return replace(self, contrasts=kept, arms=tuple(a for a in self.arms if a.name in names))

    @cached_property
    def hash(self) -> str:
        """Content hash: equal plans are measured once; a new field keeps every old hash."""
        return digest(to_doc(self, lean=True))
