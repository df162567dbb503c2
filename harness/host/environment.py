"""Environment variables: which are recorded, and which of them change speed. The only owner."""

import os
import re
from collections.abc import Mapping

from harness.host import secrets

_RECORDED = re.compile(r"^(NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|MKL|SCALEPROOF)_")
_BACKENDS = ("nccl", "gloo")
#: How long to wait, whom to meet, what to tell: no speed follows from these.
_NO_SPEED = re.compile(r"TIMEOUT|DEBUG|LOG|DUMP|COMM_ID|HOSTID|_VERSION$")
#: Nor from where torch and CUDA keep their things. A file of a backend is another matter: its
#: topology, its plan, its plugin.
_PLACES = re.compile(r"TRACE|VERBOSE|HOME|PATH|DIR|FILE|VISIBLE_DEVICES|^SCALEPROOF_", re.I)


def changes_speed(name: str) -> bool:
    """Whether two runs that differ in this variable may differ in speed by it."""
    backends = name.lower().startswith(tuple(f"{b}_" for b in _BACKENDS))
    return not _NO_SPEED.search(name) and (backends or not _PLACES.search(name))


def recorded() -> dict[str, str]:
    """The variables that a record keeps: never the whole environment, never a secret."""
    return secrets.kept({k: v for k, v in sorted(os.environ.items()) if _RECORDED.match(k)})


def of_backends(*backends: str) -> dict[str, str]:
    """The variables of these backends that change speed, no secrets; they are part of a case.

    Of NCCL and gloo if none is named.
    """
    prefixes = tuple(f"{backend.upper()}_" for backend in backends or _BACKENDS)
    variables = secrets.kept(dict(sorted(os.environ.items())))
    return {k: v for k, v in variables.items() if k.startswith(prefixes) and changes_speed(k)}


def names_interface(name: str) -> bool:
    """Whether a variable names a network interface: there a node knows better than a case."""
    return name.endswith("_IFNAME")


def switched_off(variables: Mapping[str, str], *, infiniband: bool, num_gpus: int) -> list[str]:
    """Ways between devices that variables forbid although the hardware has them."""
    there = {
        "NCCL_IB_DISABLE": (infiniband, "InfiniBand"),
        "NCCL_P2P_DISABLE": (num_gpus > 1, "direct transfers between GPUs"),
        "NCCL_SHM_DISABLE": (num_gpus > 1, "shared memory between ranks"),
    }
    return [
        f"{what} is switched off by {name}={variables[name]}, and this hardware has it"
        for name, (has, what) in there.items()
        if has and variables.get(name, "0") != "0"
    ]
