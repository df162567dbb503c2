"""The answers of a vendor's driver about GPUs: the one place that knows more than one vendor.

A vendor is a module of this folder with the functions of ``Vendor``. NVIDIA's (``nvml``) also reads
clocks, power and energy while ranks run; where another vendor's GPUs are, these are ``n/a``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Protocol, cast

#: Modules of this folder, in the order in which they are asked.
_MODULES = ("nvml", "amd")


@dataclass(frozen=True, kw_only=True)
class Health:
    """Faults of a device or its links; None without an answer.

    ``uncorrected_errors`` are memory errors since the driver was loaded. ``remapped_rows`` wait for
    a reset, or could not be remapped. ``links_down`` are NVLinks that are there and inactive.
    ``pcie_width`` and ``pcie_generation`` are (now, at most); a link at rest may be at a lower
    generation. ``persistent``: the driver stays loaded while nobody uses the device.
    """

    uncorrected_errors: int | None = None
    remapped_rows: str = ""
    links_down: tuple[int, ...] = ()
    pcie_width: tuple[int, int] | None = None
    pcie_generation: tuple[int, int] | None = None
    persistent: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One visible device; ``memory_bytes`` total. ``uuid`` never enters a machine's class.

    ``power_limit_w`` is what is enforced now, ``default_limit_w`` what the device came with;
    ``used_bytes`` and ``pids`` tell who is on it, ``bus_id`` where it is plugged in.
    ``nvlink_gb_s`` is the rate of its active NVLinks together, ``pcie_gb_s`` what its slot can
    carry, each in GB/s and one direction.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    mig: bool
    used_bytes: int | None = None
    power_limit_w: int | None = None
    default_limit_w: int | None = None
    max_clock_mhz: int | None = None
    pids: tuple[int, ...] = ()
    bus_id: str | None = None
    nvlink_gb_s: float | None = None
    pcie_gb_s: float | None = None
    health: Health = field(default_factory=lambda: Health())


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two visible devices and what joins them.

    ``joined`` is ``NVLink``, or the PCIe path as ``nvidia-smi topo`` names it, or empty if the
    driver does not say. ``switched``: the NVLinks end in an NVSwitch. ``peer``: whether one reads
    the memory of the other over PCIe; None if the driver does not say.
    """

    a: int
    b: int
    joined: str
    switched: bool = False
    peer: bool | None = None


class Vendor(Protocol):
    """The functions of a vendor's module. Each answers without a driver, too: with nothing."""

    NAME: str
    #: What is not read of these GPUs, as a sentence; empty if everything is.
    NOTICE: str

    def gpus(self) -> tuple[Gpu, ...]:
        """Every visible device."""

    def topology(self) -> tuple[Pair, ...]:
        """Every pair of visible devices."""

    def driver(self) -> str | None:
        """The version of the driver."""


def vendors() -> list[Vendor]:
    """Every vendor that is known."""
    return [cast("Vendor", importlib.import_module(f"harness.host.{name}")) for name in _MODULES]


def present() -> Vendor:
    """The vendor whose GPUs are here; the first one if there are none."""
    known = vendors()
    return next((vendor for vendor in known if vendor.gpus()), known[0])


def gpus() -> tuple[Gpu, ...]:
    """Every visible device of this machine; () without a driver."""
    return next((devices for vendor in vendors() if (devices := vendor.gpus())), ())


def topology() -> tuple[Pair, ...]:
    """Every pair of visible devices; () without a driver."""
    return next((pairs for vendor in vendors() if (pairs := vendor.topology())), ())


def driver() -> str | None:
    """The version of the driver; None without one."""
    return present().driver()
