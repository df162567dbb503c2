"""A case: its fields, its mesh of ranks, its id and its hash. Pure data, without torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import get_type_hints

from harness.base.documents import Json, to_doc


class Dim(StrEnum):
    """A dimension of a mesh, and what is cut along it."""

    PP = "pp"  # the model's depth, into stages
    DP = "dp"  # samples; parameters are replicated
    FSDP = "fsdp"  # samples, and what is kept of every parameter
    EP = "ep"  # samples, and the experts
    CP = "cp"  # the sequence
    TP = "tp"  # every layer's width
    ROLE = "role"  # the work: some generate what others train on


#: Along these every place trains on samples of its own.
DATA = frozenset({Dim.DP, Dim.FSDP, Dim.EP})
#: Along these sums are cut in another place than on one device, so that they round otherwise.
SPLITS = frozenset({Dim.EP, Dim.CP, Dim.TP})


@dataclass(frozen=True)
class Mesh:
    """Sizes by dimension, in the order of ranks: the last one's places are neighbours."""

    sizes: Mapping[Dim, int]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """``dp:2,tp:4``; ValueError if that is no mesh. Sizes of 1 are left out."""
        sizes: dict[Dim, int] = {}
        for part in text.split(",") if text else ():
            match = re.fullmatch(r"\s*([a-z]+):([1-9]\d*)\s*", part)
            if match is None or match[1] not in set(Dim) or match[1] in sizes:
                raise ValueError(
                    f"mesh: {part.strip()!r} is not one of {', '.join(Dim)} with a size, each once"
                )
            sizes[Dim(match[1])] = int(match[2])
        return cls({dim: size for dim, size in sizes.items() if size > 1})

    def __str__(self) -> str:
        return ",".join(f"{dim}:{size}" for dim, size in self.sizes.items())

    def size(self, *dims: Dim) -> int:
        """Places along these dimensions together; 1 for those that the mesh has not."""
        return math.prod(self.sizes.get(dim, 1) for dim in dims)

    @property
    def ranks(self) -> int:
        return self.size(*self.sizes)

    @cached_property
    def shards(self) -> int:
        """Parts of a batch that are trained on side by side."""
        return self.size(*(size for size in self.sizes if size in DATA))

    @property
    def uncut(self) -> bool:
        """Whether a rank has all of each parameter that it trains."""
        return self.sizes.keys().isdisjoint({Dim.FSDP, Dim.EP, Dim.TP})

    @property
    def exact(self) -> bool:
        """Whether gradients can be those of one device to the bit: two numbers add up to the same
        bits in any order, more do not.
        """
        return self.shards <= 2 and not self.splits

    @property
    def splits(self) -> bool:
        """Whether layers themselves are cut, and so add in another order than on one device."""
        return not self.sizes.keys().isdisjoint(SPLITS)

    def place(self, rank: int, *dims: Dim) -> int:
        """A rank's place along these dimensions together, in the mesh's order."""
        index, stride = 0, 1
        for dim, size in reversed(list(self.sizes.items())):
            rank, along = divmod(rank, size)
            if dim in dims:
                index = index + along * stride
                stride = stride * size
        return index

    def shard(self, rank: int) -> int:
        """Which part of every batch is this rank's."""
        return self.place(rank, *DATA)

    def at(self, world_size: int) -> Mesh:
        """The mesh of another world: the first dimension of samples (else the first) takes what the
        others leave; these shrink, outermost first, where there are too few ranks.
        """
        free = next((d for d in self.sizes if d in DATA), next(iter(self.sizes), Dim.DP))
        unplaced = world_size
        sizes = dict(self.sizes)
        for dim in reversed([d for d in self.sizes if d is not free]):
            sizes[dim] = math.gcd(sizes[dim], unplaced)
            unplaced //= sizes[dim]
        sizes[free] = unplaced
        return Mesh({dim: size for dim, size in sizes.items() if size > 1})


#: The strategy that wraps nothing: every ``plain`` baseline is it on one device.
PLAIN = "single"
#: The strategy of a user's own script: whatever it does.
SCRIPT = "script"
#: The first word of the command of a training that records itself.
BY_ITSELF = "measure_steps"
#: Numbers of 8 bits, four of them for the exponent.
FLOAT8 = "float8_e4m3fn"


class Mode(StrEnum):
    """Weak: the batch grows with the world. Strong: the global batch is fixed."""

    WEAK = "weak"
    STRONG = "strong"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class Data(StrEnum):
    """Inputs that are named in the code: that which costs a step nothing, and the default."""

    RESIDENT = "resident"


class Precision(StrEnum):
    """fp32; bf16 parameters and gradients; or fp32 parameters under autocast to bf16, to fp16 with
    scaled losses, or with the products of linear layers in 8 bits.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    AUTOCAST = "autocast"
    FP16 = "fp16"
    FP8 = "fp8"


class Attention(StrEnum):
    """Which of torch's kernels computes attention; any: whichever torch takes."""

    ANY = "any"
    MATH = "math"
    EFFICIENT = "efficient"
    FLASH = "flash"
    CUDNN = "cudnn"


class Compiled(StrEnum):
    """The compiler of the model's blocks: none, AOTAutograd without code of its own, Inductor."""

    NO = "no"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"


class Stepping(StrEnum):
    """How SGD and AdamW go over the parameters; usual: as torch does on that device."""

    USUAL = "usual"
    LOOP = "loop"
    FOREACH = "foreach"
    FUSED = "fused"


class Optimizer(StrEnum):
    """The optimizer that steps the parameters. SGD serves the gate: AdamW hides a wrong gradient
    scale.

    ``momentum`` is SGD with it; ``frozen_adam`` freezes Adam's variance after the dense steps of
    a compressed training.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"
    ADAFACTOR = "adafactor"
    FROZEN_ADAM = "frozen_adam"
    LARS = "lars"
    LAMB = "lamb"
    MUON = "muon"
    SHAMPOO = "shampoo"


#: Each one's learning rate at a batch of ``base_batch``.
USUAL_LR: Mapping[Optimizer, float] = {
    Optimizer.SGD: 0.05,
    Optimizer.MOMENTUM: 0.02,
    Optimizer.ADAMW: 1e-3,
    Optimizer.ADAFACTOR: 1e-2,
    Optimizer.FROZEN_ADAM: 3e-4,
    Optimizer.LARS: 1.0,
    Optimizer.LAMB: 1e-2,
    Optimizer.MUON: 2e-2,
    Optimizer.SHAMPOO: 1e-3,
}


class LearningRate(StrEnum):
    """How the learning rate grows with the batch: not, or linear or as the root of its size."""

    FIXED = "fixed"
    LINEAR = "linear"
    SQRT = "sqrt"


class Passes(StrEnum):
    """The extent of a step: whole, or its forward pass alone."""

    TRAIN = "train"
    FORWARD = "forward"


class StandIn(StrEnum):
    """A stand-in for hardware that is not there; labelled wherever a result is shown."""

    PACED = "paced"
    EMULATED = "emulated"
    SHARED_GPU = "shared_gpu"
    OVERSUBSCRIBED = "oversubscribed"


class Ablation(StrEnum):
    """The part that an ablated arm goes without, to see what it costs."""

    COMMUNICATION = "communication"
    DATA = "data"


@dataclass(frozen=True, kw_only=True)
class CaseSpec:
    """The case that is run: identity only, nothing about how often or how long it is measured.

    ``nodes`` is the number of ranks on each node: (8,), (4, 4), (4, 8, 16).
    ``micro_batch`` is samples per rank and forward pass; None = the model's own for its size.
    ``global_batch`` is required in strong mode and derived in weak mode.
    ``last_batch`` is the share of samples that the last batch of an epoch has (checked by the gate;
    timed are whole ones).
    ``clip`` is the largest norm of all gradients, 0 for any; ``lr`` is the learning rate, 0 for the
    optimizer's own; ``learning_rate`` says how it grows with the global batch beyond
    ``base_batch``, and it is reached after ``warm_up`` steps.
    ``first_device`` is the device (or core) of local rank 0; each rank has ``devices_per_rank``.
    ``shares`` is how fast each rank's device is beside the others: the batch is cut accordingly,
    and gradients are weighted so that every sample counts alike; empty = all alike.
    ``mesh`` is ``dp:2,tp:4``, ranks by dimension; empty = all along the strategy's own.
    ``stragglers`` is ``1:0.5`` for half of rank 1's core, several with commas: slow on purpose.
    ``n3:0.95`` slows the fourth node of the run, whichever ranks are there.
    ``script`` is a user's own training as it is typed, then strategy, model and size only name it;
    ``samples_per_step`` is what the user says of one rank of it, ``accepted`` which of its checks
    may fail as that is meant (``replicas,idle``). ``setup`` names the software that trains, where
    that is not the run's own (``Settings.setups``).
    ``data`` is the input, where batches come from: the name of a file.
    ``phase=forward`` goes forward only: no gradients, and weights stay.
    ``communicate`` is False only for an ablation: collectives return at once, with wrong results.
    ``knobs`` maps "file.knob" to a value that differs from the file's default; ``environment``
    holds the variables of its backend that can change speed (not time-outs, not logs).

    How it is computed: with ``checkpoint`` one block in ``checkpoint_every`` is computed again in
    backward, but for its matrix products where that is ``selective``; with ``offload`` the host
    keeps what forward keeps. ``attention``, ``compiled`` and ``stepping`` are kernels; ``tf32``,
    ``cudnn_benchmark`` and ``priority_stream`` (of NCCL) are switches of CUDA. ``power_cap_w`` is
    what each GPU is held at, in W, while the case runs; 0 leaves it as it is.
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
    clip: float = 0.0
    lr: float = 0.0
    learning_rate: LearningRate = LearningRate.FIXED
    base_batch: int = 32
    warm_up: int = 0
    last_batch: float = 1.0
    accumulate: int = 1
    checkpoint: bool = False
    checkpoint_every: int = 1
    selective: bool = False
    offload: bool = False
    attention: Attention = Attention.ANY
    compiled: Compiled = Compiled.NO
    stepping: Stepping = Stepping.USUAL
    tf32: bool = False
    cudnn_benchmark: bool = False
    priority_stream: bool = False
    power_cap_w: int = 0
    compressor: str | None = None
    stand_in: frozenset[StandIn] = frozenset()
    first_device: int = 0
    devices_per_rank: int = 1
    shares: tuple[float, ...] = ()
    mesh: str = ""
    stragglers: str = ""
    data: str = Data.RESIDENT
    communicate: bool = True
    phase: Passes = Passes.TRAIN
    seed: int = 0
    script: str = ""
    samples_per_step: int | None = None
    accepted: str = ""
    setup: str = ""
    knobs: Mapping[str, Json] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """A word becomes the member that it names; ``checks`` says which words there are."""
        for name, kind in _WORDS.items():
            word = getattr(self, name)
            if type(word) is str and word in set(kind):
                object.__setattr__(self, name, kind(word))

    @cached_property
    def series(self) -> Mapping[str, str]:
        """Ordered, string-valued identity: required fields, then those that differ from default."""
        doc = to_doc(self)
        required = ("strategy", "model", "size", "mode", "world_size", "nodes", "device", "backend")
        fields_of_series = {key: _text(doc[key]) for key in required}
        for declared in fields(self)[len(required) :]:
            if declared.name in ("knobs", "environment"):
                entries: Mapping[str, Json] = getattr(self, declared.name) or {}
                fields_of_series.update(
                    {key: _text(entry) for key, entry in sorted(entries.items())}
                )
            elif getattr(self, declared.name) != declared.default:
                fields_of_series[declared.name] = _text(doc[declared.name])
        return fields_of_series

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
        suffixes = [f"+{key}={series}" for key, series in self.series.items() if key not in named]
        usual = self.backend == self.usual_backend
        return ("" if usual else f"+backend={self.backend}") + "".join(suffixes)

    @property
    def usual_backend(self) -> str:
        """The backend that ranks of its device talk over where nobody asks for another."""
        return "nccl" if self.device is Device.CUDA else "gloo"

    @cached_property
    def slowed(self) -> Mapping[int, float]:
        """Ranks that are slow on purpose, and their share of a core; ValueError if unclear."""
        return {rank: share for (node, rank), share in self._slowed.items() if not node}

    @cached_property
    def slow_nodes(self) -> Mapping[int, float]:
        """Nodes of the run whose ranks are slow on purpose, and their shares."""
        return {number: share for (node, number), share in self._slowed.items() if node}

    @cached_property
    def _slowed(self) -> Mapping[tuple[bool, int], float]:
        """(Whether it is a node, its number) of what is slow on purpose."""
        factors: dict[tuple[bool, int], float] = {}
        for part in filter(None, self.stragglers.split(",")):
            match = re.fullmatch(r"(n?)(\d+):(0?\.\d+)", part)
            rank = match is not None and not match[1]
            if match is None or float(match[3]) == 0 or (rank and int(match[2]) >= self.world_size):
                raise ValueError(f"stragglers: {part!r} is not RANK:SHARE with a share below 1")
            factors[bool(match[1]), int(match[2])] = float(match[3])
        return factors

    def accepts(self, mistake: str) -> bool:
        """Whether the user of a script says that this is meant: its check is named before ``:``."""
        return bool(self.script) and mistake.partition(":")[0] in self.accepted.split(",")

    @property
    def plain(self) -> bool:
        """Whether it is one device without any wrapper, what ``plain`` baselines are."""
        return self.strategy == PLAIN

    @property
    def dtype(self) -> str:
        """The data type in which products of matrices are computed, ``bfloat16`` or ``tf32`` for
        example.
        """
        narrow = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.FP8: FLOAT8}
        return "tf32" if self.tf32 else narrow.get(self.precision, "bfloat16")

    def knobs_of(self, file: str, defaults: Mapping[str, Json]) -> dict[str, Json]:
        """The knobs of one file: its defaults, with what this case says instead."""
        return {key: self.knobs.get(f"{file}.{key}", default) for key, default in defaults.items()}

    @cached_property
    def id(self) -> str:
        """``ddp/decoder-tiny/weak@4cpu+precision=bf16``"""
        return f"{self.family}@{self.world}{self.extras}"

    @property
    def brief(self) -> str:
        """The id, of a user's own script without its command: that stands once on a screen."""
        return self.id.replace(f"+script={self.series['script']}", "") if self.script else self.id

    @cached_property
    def pytest_id(self) -> str:
        """The id with only characters that ``-k`` and node ids take."""
        text = f"{self.family.replace('-', '_').replace('/', '-')}-{self.world}{self.extras}"
        return text.translate(str.maketrans(":+=/", "_-__"))

    def fed_by(self, data: str) -> CaseSpec:
        """Returns the case with another input, without the knobs of its own."""
        knobs = {
            key: knob for key, knob in self.knobs.items() if not key.startswith(f"{self.data}.")
        }
        return replace(self, data=data, knobs=knobs)

    def at(self, world_size: int, nodes: tuple[int, ...] | None = None) -> CaseSpec:
        """Returns the case on another world: its first ranks, if these are unlike."""
        slow = [(p, p.partition(":")[0]) for p in self.stragglers.split(",")]
        return replace(
            self,
            world_size=world_size,
            nodes=nodes or (world_size,),
            shares=self.shares[:world_size] if world_size > 1 else (),
            mesh=str(Mesh.parse(self.mesh).at(world_size)) if self.mesh else "",
            stragglers=",".join(p for p, r in slow if not r.isdigit() or int(r) < world_size),
        )


#: Fields of a case that are one of a set of words.
_WORDS: Mapping[str, type[StrEnum]] = {
    name: hint
    for name, hint in get_type_hints(CaseSpec).items()
    if isinstance(hint, type) and issubclass(hint, StrEnum)
}


def digest(doc: Json) -> str:
    """16 hex digits of the sha256 of a document."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Json) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
