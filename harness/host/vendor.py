"""Query the GPUs of this machine through the driver of their vendor.

A vendor is a module of this folder with the functions of ``Vendor``. Only the module for NVIDIA
(``nvml``) also reads clocks, power and energy while ranks run. For other vendors these values are
shown as ``n/a``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Protocol, cast

#: The modules of vendors, in the order in which they are queried.
_MODULES = ("nvml", "amd")


@dataclass(frozen=True, kw_only=True)
class Health:
    """Faults of a device or its links; a field is None if the driver does not report it.

    ``uncorrected_errors`` counts memory errors since the driver was loaded. ``remapped_rows`` is
    ``pending`` if defective rows of memory will be remapped at the next reset, ``failed`` if they
    could not be remapped, and empty otherwise. ``links_down`` lists the NVLinks that exist and are
    inactive. ``pcie_width`` and ``pcie_generation`` are pairs of the current and the highest value;
    an idle link may use a lower generation. ``persistent`` means that the driver stays loaded while
    no program uses the device.
    """

    uncorrected_errors: int | None = None
    remapped_rows: str = ""
    links_down: tuple[int, ...] = ()
    pcie_width: tuple[int, int] | None = None
    pcie_generation: tuple[int, int] | None = None
    persistent: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One visible device.

    ``memory_bytes`` is its total memory, ``used_bytes`` is the memory in use, and ``pids`` are the
    processes that use the device. ``uuid`` is never part of a machine's class. ``power_limit_w`` is
    the limit that is enforced now, and ``default_limit_w`` is the limit set by the manufacturer.
    ``bus_id`` is the PCI address. ``nvlink_gb_s`` is the total rate of the active NVLinks, and
    ``pcie_gb_s`` is the rate of the PCIe slot, both in GB/s for one direction.
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
    """Two visible devices and the connection between them.

    ``joined`` is ``NVLink``, or ``xGMI``, or the PCIe path as ``nvidia-smi topo`` names it, or
    empty if the driver does not report it. ``switched`` means that the NVLinks end in an NVSwitch.
    ``peer`` says whether one device can read the memory of the other over PCIe; it is None if the
    driver does not report it.
    """

    a: int
    b: int
    joined: str
    switched: bool = False
    peer: bool | None = None


class Vendor(Protocol):
    """The functions of a vendor's module. They return empty results if there is no driver."""

    NAME: str
    #: A sentence about facts that are not read for these GPUs, or empty.
    NOTICE: str

    def gpus(self) -> tuple[Gpu, ...]:
        """Return every visible device."""

    def topology(self) -> tuple[Pair, ...]:
        """Return every pair of visible devices."""

    def driver(self) -> str | None:
        """Return the version of the driver, or None without one."""


def vendors() -> list[Vendor]:
    """Return the module of every known vendor."""
    return [cast("Vendor", importlib.import_module(f"harness.host.{name}")) for name in _MODULES]


def present() -> Vendor:
    """Return the vendor of this machine's GPUs, or the first vendor if there are none."""
    known = vendors()
    return next((vendor for vendor in known if vendor.gpus()), known[0])


def gpus() -> tuple[Gpu, ...]:
    """Return every visible device of this machine, or () without a driver."""
    return next((devices for vendor in vendors() if (devices := vendor.gpus())), ())


def topology() -> tuple[Pair, ...]:
    """Return every pair of visible devices, or () without a driver."""
    return next((pairs for vendor in vendors() if (pairs := vendor.topology())), ())


def driver() -> str | None:
    """Return the version of the driver, or None without one."""
    return present().driver()
