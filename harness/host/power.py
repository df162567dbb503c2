"""Power caps of NVIDIA devices: set for a launch, taken back behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from harness.host import nvml


def refusal(watts: int) -> str:
    """Why devices cannot be held at so many watts here; empty where they can.

    Nothing is changed: the limit that is there is set once more.
    """
    limits = nvml.power_limits()
    if not limits:
        return "no NVIDIA driver answers here"
    for limit in limits:
        if limit.now_w is None or limit.least_w is None or limit.most_w is None:
            return f"GPU {limit.index} has no power limit that NVML knows"
        if not limit.least_w <= watts <= limit.most_w:
            return f"GPU {limit.index} takes {limit.least_w} to {limit.most_w} W, not {watts}"
        if not nvml.limit_power(limit.index, limit.now_w):
            return (
                f"NVML does not let this user set GPU {limit.index}'s power limit: run as root, or"
                f" have the site set it (nvidia-smi -pl {watts}) and run each cap by itself"
            )
    return ""


@contextlib.contextmanager
def capped(places: Collection[int], watts: int) -> Iterator[None]:
    """Holds the visible devices at these places at so many watts; 0 leaves them as they are.

    One that cannot be held is left, too: the gate reads what ranks run under.
    """
    before = [limit for i, limit in enumerate(nvml.power_limits()) if watts and i in places]
    for limit in before:
        nvml.limit_power(limit.index, watts)
    try:
        yield
    finally:
        for limit in before:
            if limit.now_w is not None:
                nvml.limit_power(limit.index, limit.now_w)
