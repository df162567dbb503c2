"""Find modes of torch and Python that are meant for debugging and make a training slower."""

import os
import sys

import torch
import torch.distributed as dist

#: Environment variables of debugging modes, with the values that switch them on.
_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "AMD_SERIALIZE_KERNEL": ("1", "2", "3"),
}


def debugging() -> set[str]:
    """Return the names of the debugging modes that are switched on now."""
    modes = {
        "torch.autograd.set_detect_anomaly(True)": torch.is_anomaly_enabled(),
        "torch.use_deterministic_algorithms(True)": torch.are_deterministic_algorithms_enabled(),
        "TORCH_DISTRIBUTED_DEBUG=DETAIL": dist.is_available()
        and dist.get_debug_level() == dist.DebugLevel.DETAIL,
        "a debugger, profiler or coverage (sys.settrace, sys.setprofile)": bool(
            sys.gettrace() or sys.getprofile()
        ),
    }
    modes |= {f"{name}={os.environ.get(name)}": os.environ.get(name, "") in values
              for name, values in _VARIABLES.items()}  # fmt: skip
    return {name for name, on in modes.items() if on}
