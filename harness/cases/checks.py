"""Checks whether a case can run. They are made when a user names the case."""

import json
import math
from collections.abc import Iterator, Mapping

from harness.base.documents import Json
from harness.base.errors import SpecError, nearest
from harness.cases.case import (
    Attention,
    CaseSpec,
    Device,
    Dim,
    Mesh,
    Mode,
    Optimizer,
    Passes,
    Precision,
    StandIn,
    Stepping,
)
from harness.cases.heads import Supports

Sizes = Mapping[str, Mapping[str, Json]]


def check(case: CaseSpec, supports: Supports, sizes: Sizes) -> None:
    """Raise SpecError for the first reason why the case cannot run."""
    for what, expected, fix in mistakes(case, supports, sizes):
        raise SpecError(what, where=case.id, expected=expected, fix=fix or "scaleproof run list")


Mistakes = Iterator[tuple[str, str, str]]


def mistakes(case: CaseSpec, supports: Supports, sizes: Sizes) -> Mistakes:
    """Yield (mistake, expected, fix) for each mistake in a case, the most important first."""
    yield from _unsupported(case, supports, sizes)
    yield from _numbers(case)
    yield from _batches(case, supports)
    yield from _shares(case)
    yield from _mesh(case, supports)
    yield from _sharing(case, supports)
    yield from _computed(case)
    yield from _stragglers(case)
    yield from _places(case, sizes)
    yield from _variables(case)
    yield from _mode(case)


def _unsupported(case: CaseSpec, supports: Supports, sizes: Sizes) -> Mistakes:
    """Yield a mistake for each option that the strategy or the model does not support."""
    strategy, model = f"strategy {case.strategy!r}", f"model {case.model!r}"
    if case.size not in sizes:
        what = f"{model} has no size {case.size!r}{nearest(case.size, sizes)}"
        yield what, ", ".join(sizes), "scaleproof run list models"
    if case.device not in supports.devices:
        yield f"{strategy} does not run on {case.device}", ", ".join(supports.devices), ""
    if case.mode not in supports.modes:
        yield f"{strategy} has no {case.mode} mode", ", ".join(supports.modes), ""
    if supports.compressor != (case.compressor is not None):
        need = "needs a" if supports.compressor else "takes no"
        fix = "scaleproof run list compressors"
        yield f"{strategy} {need} compressor", "for example compressed:topk/decoder-tiny", fix
    if supports.worlds == "one" and case.world_size != 1:
        yield f"{strategy} runs on one rank only", "1 rank", ""
    if case.phase is Passes.FORWARD and not supports.forward:
        yield f"{strategy} cannot run the forward pass alone", "phase=train", "--set phase=train"


def _numbers(case: CaseSpec) -> Mistakes:
    """Yield a mistake for each number that is too small or not finite."""
    for name in ("micro_batch", "global_batch", "seq_len", "accumulate", "devices_per_rank"):
        if (value := getattr(case, name)) is not None and value < 1:
            yield f"{name} = {value}", "at least 1", f"--set {name}=1"
    for name, least in (("clip", 0), ("lr", 0), ("warm_up", 0), ("base_batch", 1)):
        if (value := getattr(case, name)) < least or not math.isfinite(value):
            yield f"{name} = {value}", f"a number of at least {least}", f"--set {name}={least}"


def _batches(case: CaseSpec, supports: Supports) -> Mistakes:
    """Yield a mistake if the size of the last batch is impossible or not supported."""
    if not 0 < case.last_batch <= 1:
        yield (
            f"last_batch = {case.last_batch}",
            "a fraction above 0 and at most 1",
            "--set last_batch=1.0",
        )
    if case.last_batch < 1 and not supports.uneven:
        what = f"strategy {case.strategy!r} does not support a short last batch"
        yield what, "last_batch=1.0", "--set last_batch=1.0"
    if case.last_batch < 1 and case.accumulate > 1:
        yield (
            "a short last batch is not divided into accumulation steps",
            "accumulate=1",
            "--set accumulate=1",
        )


def _shares(case: CaseSpec) -> Mistakes:
    """Yield a mistake unless ``shares`` has one positive number for each rank."""
    if case.shares and (len(case.shares) != case.world_size or min(case.shares) <= 0):
        what = f"shares {case.shares} do not fit {case.world_size} ranks"
        yield what, "a number above 0 for each rank", f"--set shares={_equal(case)}"


def _equal(case: CaseSpec) -> str:
    """Return the value of ``shares`` with which all ranks are equal, as ``--set`` takes it."""
    return ",".join(["1"] * case.world_size)


def _stragglers(case: CaseSpec) -> Mistakes:
    """Yield a mistake if ``stragglers`` cannot be parsed or has no effect on the device."""
    try:
        slow_on_gpus = case.slowed and case.device is Device.CUDA
    except ValueError as error:
        yield str(error), "RANK:SHARE, separated by commas", "--set stragglers=1:0.5"
        return
    if slow_on_gpus:
        what = "stragglers slow CPU cores, which hardly affects the ranks of GPUs"
        yield what, "CPU ranks", "--cpus 2"


def _places(case: CaseSpec, sizes: Sizes) -> Mistakes:
    """Yield a mistake if the model has no sequence length to set, or if the ranks of the nodes do
    not add up to the world size.
    """
    if case.seq_len is not None and "seq" not in sizes[case.size]:
        yield f"model {case.model!r} has no sequence length", "no seq_len", ""
    if sum(case.nodes) != case.world_size or min(case.nodes) < 1:
        what = f"nodes {case.nodes} do not add up to {case.world_size} ranks"
        yield what, "numbers of ranks on each node that add up to the world size", ""


def _variables(case: CaseSpec) -> Mistakes:
    """Yield a mistake for each environment variable of a backend that the case does not use.

    Such a variable would change the identity of the case, but not its speed.
    """
    for name in case.environment or {}:
        reader = name.partition("_")[0].lower()
        if reader != case.backend:
            what = f"{name} has no effect on {case.backend}"
            yield what, f"only variables that {case.backend} reads", f"--set backend={reader}"


def _mode(case: CaseSpec) -> Mistakes:
    """Yield a mistake if a batch size is missing, or if one is set that the mode derives."""
    strong = case.mode is Mode.STRONG
    if strong and case.global_batch is None:
        yield "strong mode needs a global batch", "global_batch", "--set global_batch=16"
    if strong and case.micro_batch is not None:
        yield "strong mode derives the micro-batch", "only global_batch is set", ""
    if not strong and case.global_batch is not None:
        yield "weak mode derives the global batch", "only micro_batch is set", ""


def _mesh(case: CaseSpec, supports: Supports) -> Mistakes:
    """Yield a mistake if the mesh cannot be parsed, is not supported by the strategy, or does not
    have as many ranks as the world.
    """
    flat = f"{supports.dims[0]}:{case.world_size}"
    if not case.mesh:
        return
    try:
        mesh = Mesh.parse(case.mesh)
    except ValueError as error:
        yield str(error), flat, f"--set mesh={flat}"
        return
    for dim in (size for size in mesh.sizes if size not in supports.dims):
        what = f"strategy {case.strategy!r} has no dimension {str(dim)!r}"
        yield what, ", ".join(supports.dims), f"--set mesh={flat}"
    if mesh.ranks != case.world_size:
        what = f"mesh {case.mesh} has {mesh.ranks} ranks, but the world has {case.world_size}"
        yield (
            what,
            "a mesh with one position per rank",
            f"--set mesh={mesh.at(case.world_size) or flat}",
        )
    if case.shares:
        yield "shares divide the batch of data-parallel ranks only", "no mesh", ""


#: Dimensions whose collectives fail over gloo on GPUs, because gloo reads device pointers as host
#: pointers without a check (pytorch #132471).
_NOT_OVER_GLOO = (Dim.FSDP, Dim.PP, Dim.TP, Dim.CP, Dim.EP, Dim.ROLE)


def _sharing(case: CaseSpec, supports: Supports) -> Mistakes:
    """Yield a mistake if ranks share a GPU although the strategy does not allow it.

    Ranks that share a GPU communicate over gloo, which can copy only a few kinds of collectives
    through the host. Strategies of other frameworks give each rank the GPU with its local number.
    """
    if StandIn.SHARED_GPU not in case.stand_in or case.world_size == 1:
        return
    if supports.packages:
        what = f"{case.strategy} does not support --shared-gpu: it gives each rank a separate GPU"
        yield what, "a GPU for each rank", "--set strategy=ddp"
        return
    for dim in _NOT_OVER_GLOO:
        if dim in supports.dims and (dim == supports.dims[0] or str(dim) in case.mesh):
            what = f"gloo, which --shared-gpu needs, does not support dimension {str(dim)!r}"
            yield what, "a GPU for each rank, or data parallelism", "--set strategy=ddp"
            return


def _computed(case: CaseSpec) -> Mistakes:
    """Yield a mistake for each kernel that the device does not have, and for each setting of an
    option that is off.
    """
    if case.checkpoint_every < 1:
        what = f"checkpoint_every = {case.checkpoint_every}"
        yield what, "at least 1", "--set checkpoint_every=1"
    for name, is_asked in (
        ("checkpoint_every", case.checkpoint_every != 1),
        ("selective", case.selective),
    ):
        if is_asked and not case.checkpoint:
            yield (
                f"{name} applies only to checkpointing",
                "checkpoint=true",
                "--set checkpoint=true",
            )
    if case.checkpoint and case.offload:
        yield (
            "checkpoint and offload exclude each other: both handle activations",
            "only one of checkpoint and offload is set",
            "",
        )
    torchs = (Optimizer.SGD, Optimizer.ADAMW)
    if case.stepping is not Stepping.USUAL and case.optimizer not in torchs:
        what = f"stepping={case.stepping} is not available with optimizer={case.optimizer}"
        yield what, " or ".join(torchs), f"--set optimizer={Optimizer.ADAMW}"
    if case.tf32 and case.precision is not Precision.FP32:
        yield (
            f"tf32 has no effect with precision={case.precision}",
            "precision=fp32",
            "--set tf32=false",
        )
    half = (Precision.AUTOCAST, Precision.BF16, Precision.FP16)
    if case.device is not Device.CPU:
        halves = (Attention.FLASH, Attention.CUDNN)
        if case.attention in halves and case.precision not in half:
            what = (
                f"attention={case.attention} computes in 16 bits on GPUs, not in {case.precision}"
            )
            yield what, f"precision {' or '.join(half)}", f"--set precision={Precision.AUTOCAST}"
        return
    for name in ("offload", "tf32", "cudnn_benchmark", "priority_stream", "power_cap_w"):
        if value := getattr(case, name):
            off = "false" if value is True else "0"
            yield f"{name} is a setting of CUDA devices", "GPUs", f"--set {name}={off}"
    if case.attention in (Attention.EFFICIENT, Attention.CUDNN):
        what = f"attention={case.attention} is a kernel of CUDA devices"
        yield what, "any, math or flash", "--set attention=flash"


#: Upper limit of the value of a knob. It is larger than any reasonable size, count or time.
LARGEST = 1e15


#: The description of each type of knob in messages.
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _like(default: Json) -> str:
    """Return a default value of a knob in the form that ``--set`` takes."""
    return json.dumps(default) if isinstance(default, bool) else str(default)


def check_knobs(
    asked: Mapping[str, Json],
    defaults: Mapping[str, Json],
    ranges: Mapping[str, tuple[float, float]],
    where: str,
) -> dict[str, Json]:
    """Return the knobs that differ from their defaults.

    Raises SpecError if no file has a knob of this name, or if the value of a knob has the wrong
    type or is out of range.
    """
    knobs = {}
    for key, value in asked.items():
        if key not in defaults:
            raise SpecError(
                f"unknown knob {key!r}{nearest(key, defaults)}",
                where=where,
                expected=", ".join(
                    sorted(default for default in defaults if not default.endswith(".version"))
                ),
                fix="scaleproof run list",
            )
        want = type(defaults[key])
        value = float(value) if want is float and type(value) is int else value
        if type(value) is not want:
            raise SpecError(
                f"knob {key} = {value!r}",
                where=where,
                expected=_TYPES.get(want, want.__name__),
                fix=f"--set {key}={_like(defaults[key])}",
            )
        least, most = ranges.get(key, (0, LARGEST))
        if want in (int, float) and not least <= value <= most:
            raise SpecError(
                f"knob {key} = {value!r}",
                where=where,
                expected=f"a number from {least:g} to {most:g}",
                fix=f"--set {key}={_like(defaults[key])}",
            )
        if value != defaults[key]:
            knobs[key] = value
    return knobs
