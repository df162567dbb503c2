"""Sorts one rank's trace into lanes, as its ranks computed: on the host, or on a device."""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.device_lanes import device_lanes
from harness.analysis.timeline.host_lanes import host_lanes, outline_lanes, outlined
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import Trace
from harness.base.errors import ScaleproofError

#: Trace categories of calls to a device's runtime; ``_LAUNCH`` matches calls that start a kernel.
_RUNTIME = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver",
    "privateuse1_runtime", "privateuse1_driver",
)  # fmt: skip
_LAUNCH = re.compile(r"\w*launch", re.IGNORECASE)
#: The profiler itself makes up to this many runtime calls if nothing runs on the device.
_OF_PROFILER = 2
#: Rows of a device beside its kernels.
_ON_DEVICE = ("gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
#: Operators that run on a device only; whether cuDNN could be used is asked on cores, too.
_DEVICE_OPERATOR = re.compile(r".*(cudnn_(?!is_acceptable)|cublas|miopen|nccl:)")
#: The share of launches that have their kernel in a trace that is whole: the profiler may stop
#: before the last ones run.
_WHOLE = 0.9


def lanes(trace: Trace, rank: int | None = None, step_name: str | None = None) -> Lanes:
    """Sort a trace. ``rank`` where the file does not say it itself.

    ``step_name`` is the annotation that is a step; without, it is the profiler's own.
    ScaleproofError if the trace is of no training, or lacks what its device did.
    """
    known = trace.rank if trace.rank >= 0 else (rank or 0)
    on_device = bool(trace.of_cat("kernel").any())
    if missing := _missing(trace, on_device=on_device):
        raise ScaleproofError(
            f"device activity is missing: {missing}",
            where=trace.path,
            expected="a whole trace with the kernels of its device",
            fix="profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), with no other"
            " tool on the device, then export the trace again",
        )
    notes = trace.notes
    if on_device:
        lane = device_lanes(trace, known, step_name)
    elif outlined(trace):
        lane = outline_lanes(trace, known)
    elif trace.of_cat("cpu_op").any():
        lane = host_lanes(trace, known, step_name)
        if device := _named_device(trace):
            notes += (f"{device} is in its header and no row is of it: is this all that ran?",)
    else:
        raise ScaleproofError(
            "no operator and no kernel in this trace: it is not of a training",
            where=trace.path,
            expected="a Chrome trace of torch.profiler",
            fix="export_chrome_trace('rank0.json.gz'), then scaleproof timeline rank0.json.gz",
        )
    if (lane.edges[1:] <= lane.edges[:-1]).any() or len(lane.edges) < 2:
        raise ScaleproofError(
            "no step in this trace has a length",
            where=trace.path,
            expected="steps that run something",
            fix="profile 3 steps and more, then try again",
        )
    unsure = lane.unsure + ((trace.partial,) if trace.partial else ()) + notes
    return replace(lane, unsure=unsure)


def _missing(trace: Trace, *, on_device: bool) -> str:
    """Say what a trace lacks of its device's rows; empty if it lacks nothing, or has no device."""
    launches = trace.of_cat(*_RUNTIME) & trace.named(_LAUNCH)
    count = int(launches.sum())
    cut = f"{trace.partial}, and " if trace.partial else ""
    if on_device:
        ran = int(np.isin(trace.correlation[launches], _correlated(trace)).sum())
        lost = f"{cut}{count - ran:,} of {count:,} kernel launches have no kernel"
        return lost if cut and ran < _WHOLE * count else ""
    if count:
        return f"{cut}{count:,} kernel launch{'es have' if count > 1 else ' has'} no kernel"
    if trace.of_cat(*_ON_DEVICE).any() or trace.device_memory:
        return f"{cut}it has rows of a device, and no kernel"
    if (calls := int(trace.of_cat(*_RUNTIME).sum())) > _OF_PROFILER:
        return f"{cut}{calls:,} calls of a device's runtime have no kernel"
    if trace.named(_DEVICE_OPERATOR).any():
        names = [name for name in trace.names if _DEVICE_OPERATOR.match(name)]
        return f"{cut}{names[0]} ran on a device, and has no kernel"
    if cut and (device := _named_device(trace)):
        return f"{cut}no row is of {device}, which its header names"
    return ""


def _correlated(trace: Trace) -> NDArray[np.integer]:
    """Return the correlation ids of the events that ran on the device."""
    return trace.correlation[trace.of_cat("kernel", "gpu_memcpy", "gpu_memset")]


def _named_device(trace: Trace) -> str:
    """The name of the first device that the header lists; empty if it lists none."""
    listed = trace.meta.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else {}
    return str(first.get("name") or "a device") if isinstance(first, dict) and first else ""
