"""The definition of a case: its fields, its mesh of ranks, its id and its hash.

This module does not import torch.
"""

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
    """A dimension of a mesh. The comment of each member names what is divided along it."""

    PP = "pp"  # the depth of the model, into stages
    DP = "dp"  # the samples; parameters are replicated
    FSDP = "fsdp"  # the samples and the shards of every parameter
    EP = "ep"  # the samples and the experts
    CP = "cp"  # the sequence
    TP = "tp"  # the width of every layer
    ROLE = "role"  # the work: some ranks generate the samples that other ranks train on


#: Dimensions along which ranks train on different samples.
DATA = frozenset({Dim.DP, Dim.FSDP, Dim.EP})
#: Dimensions along which sums inside layers are split among ranks. These sums are added in an order
#: that differs from the order on one device, so they round differently.
SPLITS = frozenset({Dim.EP, Dim.CP, Dim.TP})


@dataclass(frozen=True)
class Mesh:
    """The sizes of a mesh by dimension, outermost first.

    Consecutive ranks differ in the last dimension.
    """

    sizes: Mapping[Dim, int]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Parse a mesh such as ``dp:2,tp:4`` and leave out dimensions of size 1.

        Raises ValueError if a part is not a known dimension with a size, or if a dimension occurs
        twice.
        """
        sizes: dict[Dim, int] = {}
        for part in text.split(",") if text else ():
            match = re.fullmatch(r"\s*([a-z]+):([1-9]\d*)\s*", part)
            if match is None or match[1] not in set(Dim) or match[1] in sizes:
                raise ValueError(
                    f"mesh: {part.strip()!r} is not DIM:SIZE; DIM is {'|'.join(Dim)}, each once"
                )
            sizes[Dim(match[1])] = int(match[2])
        return cls({dim: size for dim, size in sizes.items() if size > 1})

    def __str__(self) -> str:
        return ",".join(f"{dim}:{size}" for dim, size in self.sizes.items())

    def size(self, *dims: Dim) -> int:
        """Return the product of the sizes of these dimensions.

        A dimension that the mesh does not have counts as 1.
        """
        return math.prod(self.sizes.get(dim, 1) for dim in dims)

    @property
    def ranks(self) -> int:
        """The number of ranks in the mesh."""
        return self.size(*self.sizes)

    @cached_property
    def shards(self) -> int:
        """The number of parts of a batch that ranks train on in parallel."""
        return self.size(*(size for size in self.sizes if size in DATA))

    @property
    def uncut(self) -> bool:
        """Whether no parameter is split, so that a rank holds its parameters completely."""
        return self.sizes.keys().isdisjoint({Dim.FSDP, Dim.EP, Dim.TP})

    @property
    def exact(self) -> bool:
        """Whether gradients can be bitwise equal to the gradients of one device.

        The sum of two numbers has the same bits in either order. The sum of three or more numbers
        may have different bits in different orders.
        """
        return self.shards <= 2 and not self.splits

    @property
    def splits(self) -> bool:
        """Whether layers are split. Their sums then run in a different order than on one device."""
        return not self.sizes.keys().isdisjoint(SPLITS)

    def place(self, rank: int, *dims: Dim) -> int:
        """Return the index of a rank along these dimensions, counted in the order of the mesh."""
        index, stride = 0, 1
        for dim, size in reversed(list(self.sizes.items())):
            rank, along = divmod(rank, size)
            if dim in dims:
                index = index + along * stride
                stride = stride * size
        return index

    def shard(self, rank: int) -> int:
        """Return the index of the shard (part of each batch) on which a rank trains."""
        return self.place(rank, *DATA)

    def at(self, world_size: int) -> Mesh:
        """Return the mesh for another world size.

        The first data dimension changes its size, or the first dimension if there is no data
        dimension. The other dimensions keep their sizes if there are enough ranks. If not, they
        shrink, outermost first.
        """
        free = next((d for d in self.sizes if d in DATA), next(iter(self.sizes), Dim.DP))
        unplaced = world_size
        sizes = dict(self.sizes)
        for dim in reversed([d for d in self.sizes if d is not free]):
            sizes[dim] = math.gcd(sizes[dim], unplaced)
            unplaced //= sizes[dim]
        sizes[free] = unplaced
        return Mesh({dim: size for dim, size in sizes.items() if size > 1})


#: The strategy that adds no wrapper. Every ``plain`` baseline uses it on one device.
PLAIN = "single"
#: The strategy name of a user's script, which trains by any method.
SCRIPT = "script"
#: The first word of the command of a training that records itself with ``harness.measure_steps``.
BY_ITSELF = "measure_steps"
#: The 8-bit floating-point format with 4 exponent bits.
FLOAT8 = "float8_e4m3fn"


class Mode(StrEnum):
    """Weak or strong scaling.

    In weak scaling the global batch grows with the world size. In strong scaling it is fixed.
    """

    WEAK = "weak"
    STRONG = "strong"


class Device(StrEnum):
    """The kind of device on which ranks compute."""

    CPU = "cpu"
    CUDA = "cuda"


class Data(StrEnum):
    """The name of the default input, ``resident``, whose batches stay on the device.

    The code needs to know only this name; ``scaleproof run list`` prints the names of all inputs.
    """

    RESIDENT = "resident"


class Precision(StrEnum):
    """The precision of a training.

    ``fp32`` is full precision. ``bf16`` has parameters and gradients in bf16. The other three keep
    parameters in fp32. Of these, ``autocast`` computes in bf16 under autocast, ``fp16`` computes in
    fp16 under autocast with loss scaling, and ``fp8`` computes the products of linear layers in 8
    bits.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    AUTOCAST = "autocast"
    FP16 = "fp16"
    FP8 = "fp8"


class Attention(StrEnum):
    """The torch kernel that computes attention. ``any`` leaves the choice to torch."""

    ANY = "any"
    MATH = "math"
    EFFICIENT = "efficient"
    FLASH = "flash"
    CUDNN = "cudnn"


class Compiled(StrEnum):
    """The compiler of the model's blocks.

    It is none, AOTAutograd without code generation, or Inductor.
    """

    NO = "no"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"


class Stepping(StrEnum):
    """The implementation with which SGD and AdamW update parameters.

    ``usual`` is torch's default for the device.
    """

    USUAL = "usual"
    LOOP = "loop"
    FOREACH = "foreach"
    FUSED = "fused"


class Optimizer(StrEnum):
    """The optimizer that updates the parameters.

    The correctness checks use SGD because AdamW hides a wrong gradient scale. ``momentum`` is SGD
    with momentum. ``frozen_adam`` freezes Adam's variance after the uncompressed steps of a
    compressed training.
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


#: The default learning rate of each optimizer at a global batch of ``base_batch``.
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
    """How the learning rate grows with the global batch.

    It is fixed, grows linearly, or grows with the square root of the global batch.
    """

    FIXED = "fixed"
    LINEAR = "linear"
    SQRT = "sqrt"


class Passes(StrEnum):
    """The part of a training step that is run: the whole step, or only its forward pass."""

    TRAIN = "train"
    FORWARD = "forward"


class StandIn(StrEnum):
    """A kind of simulation that replaces missing hardware.

    Every screen that shows a simulated result shows the kind as a label.
    """

    PACED = "paced"
    EMULATED = "emulated"
    SHARED_GPU = "shared_gpu"
    OVERSUBSCRIBED = "oversubscribed"


class Ablation(StrEnum):
    """The part of a step that an arm omits. The time that this saves is the cost of the part."""

    COMMUNICATION = "communication"
    DATA = "data"


@dataclass(frozen=True, kw_only=True)
class CaseSpec:
    """The configuration that is run.

    All fields identify the case. They do not include how often or how long it is measured.

    ``nodes`` is the number of ranks on each node: (8,), (4, 4), (4, 8, 16). ``micro_batch`` is the
    number of samples per rank and forward pass; None selects the model's default for its size.

    ``global_batch`` is required in strong mode and derived in weak mode.

    ``last_batch`` is the size of the last batch of an epoch as a fraction of a full batch. The
    correctness check trains on it; timed steps use full batches.

    ``clip`` is the largest allowed norm of all gradients; 0 sets no limit. ``lr`` is the learning
    rate; 0 selects the optimizer's default. ``learning_rate`` states how the rate grows if the
    global batch is larger than ``base_batch``. The training reaches the rate after ``warm_up``
    steps.

    ``first_device`` is the device (or core) of local rank 0. Each rank has ``devices_per_rank``
    devices.

    ``shares`` holds the relative speed of each rank's device. The batch is divided in this
    proportion, and gradients are weighted so that every sample counts equally. If it is empty, all
    speeds are equal.

    ``mesh`` is the number of ranks by dimension, for example ``dp:2,tp:4``. If it is empty, the
    mesh that the strategy declares as ``usual`` is used. If the strategy declares none, all ranks
    are along its first dimension.

    ``stragglers`` slows ranks on purpose: ``1:0.5`` gives rank 1 half of a core. ``n3:0.95`` slows
    all ranks on node 3 of the run (nodes count from 0). Several entries are separated by commas.

    ``script`` is the command line of a user's training; strategy, model and size are then only
    names. ``samples_per_step`` is the number of samples per step and rank that the user states.
    ``accepted`` names the checks that may fail because the user intends it (``replicas,idle``).
    ``setup`` names the software environment in which the case trains, if it differs from the
    environment of the run (``Settings.setups``).

    ``data`` is the name of the input from which batches come. ``phase=forward`` runs only the
    forward pass: there are no gradients, and weights stay the same.

    ``communicate`` is False only for an ablation: collectives return immediately, with wrong
    results.

    ``knobs`` maps "file.knob" to a value that differs from the file's default. ``environment``
    holds the backend's environment variables that can change the speed (no time-outs, no logs).

    The remaining fields select how the case is computed. With ``checkpoint`` the backward pass
    recomputes one block in ``checkpoint_every``, except its matrix products if ``selective`` is
    set. With ``offload`` activations are kept in host memory. ``attention``, ``compiled`` and
    ``stepping`` select kernels. ``tf32``, ``cudnn_benchmark`` and ``priority_stream`` (of NCCL) are
    CUDA switches. ``power_cap_w`` is the power limit of each GPU, in W, while the case runs; 0
    leaves it unchanged.
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
        """Convert strings to the enumeration of their field.

        The module ``checks`` reports strings that are not members of the enumeration.
        """
        for name, kind in _WORDS.items():
            word = getattr(self, name)
            if type(word) is str and word in set(kind):
                object.__setattr__(self, name, kind(word))

    @cached_property
    def series(self) -> Mapping[str, str]:
        """The identity of the case as ordered strings.

        The required fields come first, then all fields that differ from their defaults.
        """
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
        """The first 16 hex digits of the sha256 of ``series``.

        A new field with a default does not change the hash of existing cases.
        """
        return digest(dict(self.series))

    @cached_property
    def family(self) -> str:
        """The id without world and settings, such as ``ddp/decoder-tiny/weak``.

        Thresholds match it.
        """
        strategy = f"{self.strategy}:{self.compressor}" if self.compressor else self.strategy
        return f"{strategy}/{self.model}-{self.size}/{self.mode}"

    @cached_property
    def world(self) -> str:
        """The world as text: ``4cpu``, ``2x4gpu`` or ``4+8+16gpu``."""
        unit = "gpu" if self.device is Device.CUDA else "cpu"
        if len(self.nodes) == 1:
            return f"{self.world_size}{unit}"
        if len(set(self.nodes)) == 1:
            return f"{len(self.nodes)}x{self.nodes[0]}{unit}"
        return "+".join(map(str, self.nodes)) + unit

    @cached_property
    def extras(self) -> str:
        """The settings that differ from their defaults, in a fixed order.

        For example ``+precision=bf16+ddp.bucket_cap_mb=5``.
        """
        named = {"strategy", "model", "size", "mode", "world_size", "nodes", "device"}
        named |= {"compressor", "stand_in", "backend"}
        suffixes = [f"+{key}={series}" for key, series in self.series.items() if key not in named]
        usual = self.backend == self.usual_backend
        return ("" if usual else f"+backend={self.backend}") + "".join(suffixes)

    @property
    def usual_backend(self) -> str:
        """The default communication backend of the case's device."""
        return "nccl" if self.device is Device.CUDA else "gloo"

    @cached_property
    def slowed(self) -> Mapping[int, float]:
        """The ranks that are slowed on purpose, and the fraction of a core that each one gets.

        Raises ValueError if ``stragglers`` cannot be parsed.
        """
        return {rank: share for (node, rank), share in self._slowed.items() if not node}

    @cached_property
    def slow_nodes(self) -> Mapping[int, float]:
        """The nodes whose ranks are slowed on purpose, and the fraction of a core for each rank."""
        return {number: share for (node, number), share in self._slowed.items() if node}

    @cached_property
    def _slowed(self) -> Mapping[tuple[bool, int], float]:
        """The fractions of a core by (whether a node is named, number of the node or rank)."""
        factors: dict[tuple[bool, int], float] = {}
        for part in filter(None, self.stragglers.split(",")):
            match = re.fullmatch(r"(n?)(\d+):(0?\.\d+)", part)
            rank = match is not None and not match[1]
            if match is None or float(match[3]) == 0 or (rank and int(match[2]) >= self.world_size):
                raise ValueError(f"stragglers: {part!r} is not RANK:SHARE with a share below 1")
            factors[bool(match[1]), int(match[2])] = float(match[3])
        return factors

    def accepts(self, mistake: str) -> bool:
        """Return whether the user of a script accepts this failure of a check.

        ``mistake`` begins with the name of the check and a colon.
        """
        return bool(self.script) and mistake.partition(":")[0] in self.accepted.split(",")

    @property
    def plain(self) -> bool:
        """Whether the case runs on one device without any wrapper, as ``plain`` baselines do."""
        return self.strategy == PLAIN

    @property
    def dtype(self) -> str:
        """The data type in which matrices are multiplied, for example ``bfloat16`` or ``tf32``."""
        narrow = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.FP8: FLOAT8}
        return "tf32" if self.tf32 else narrow.get(self.precision, "bfloat16")

    def knobs_of(self, file: str, defaults: Mapping[str, Json]) -> dict[str, Json]:
        """Return the knobs of one file: its defaults, replaced by the values that the case sets."""
        return {key: self.knobs.get(f"{file}.{key}", default) for key, default in defaults.items()}

    @cached_property
    def id(self) -> str:
        """The full name of the case: ``ddp/decoder-tiny/weak@4cpu+precision=bf16``."""
        return f"{self.family}@{self.world}{self.extras}"

    @property
    def brief(self) -> str:
        """The id without the command of a user's script, which screens print separately."""
        return self.id.replace(f"+script={self.series['script']}", "") if self.script else self.id

    @cached_property
    def pytest_id(self) -> str:
        """The id with only characters that pytest accepts in ``-k`` and in node ids."""
        text = f"{self.family.replace('-', '_').replace('/', '-')}-{self.world}{self.extras}"
        return text.translate(str.maketrans(":+=/", "_-__"))

    def fed_by(self, data: str) -> CaseSpec:
        """Return the case with the input ``data``, and without the knobs of its previous input."""
        knobs = {
            key: knob for key, knob in self.knobs.items() if not key.startswith(f"{self.data}.")
        }
        return replace(self, data=data, knobs=knobs)

    def at(self, world_size: int, nodes: tuple[int, ...] | None = None) -> CaseSpec:
        """Return the case at another world size.

        Its ``shares`` and ``stragglers`` are reduced to the ranks that remain.
        """
        slow = [(p, p.partition(":")[0]) for p in self.stragglers.split(",")]
        return replace(
            self,
            world_size=world_size,
            nodes=nodes or (world_size,),
            shares=self.shares[:world_size] if world_size > 1 else (),
            mesh=str(Mesh.parse(self.mesh).at(world_size)) if self.mesh else "",
            stragglers=",".join(p for p, r in slow if not r.isdigit() or int(r) < world_size),
        )


#: The fields of a case whose values are members of an enumeration.
_WORDS: Mapping[str, type[StrEnum]] = {
    name: hint
    for name, hint in get_type_hints(CaseSpec).items()
    if isinstance(hint, type) and issubclass(hint, StrEnum)
}


def digest(doc: Json) -> str:
    """Return the first 16 hex digits of the sha256 of a document."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Json) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
