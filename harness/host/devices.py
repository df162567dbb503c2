"""The GPUs that are known (devices.toml), by the names that NVML, people and tables give them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness.host.fabric import LinkClass, Network


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A device's data sheet: GiB of memory, GB/s of memory and of links, peak TFLOP/s by dtype.

    ``link_gb_s`` is what it sends to the GPUs of its node, ``network_gb_s`` to those of others;
    ``link`` and ``network`` are what usually joins them, ``mesh`` the number of devices that its
    links join pairwise where that is the same in every node, else 0.
    """

    gpu: str
    memory_gib: int
    link_gb_s: float
    link: LinkClass = LinkClass.UNKNOWN
    network: Network = Network.UNKNOWN
    memory_gb_s: float | None = None
    network_gb_s: float = 50.0
    tflops: Mapping[str, float] = field(default_factory=dict)
    mesh: int = 0
    names: str = ""
    words: str = ""


@cache
def sheets() -> Mapping[str, Sheet]:
    """Every known device by its short name, ``h100`` for example; most special first."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {short: _sheet(table) for short, table in tables.items()}


def named(gpu: str | None) -> Sheet | None:
    """The device that NVML gives this name; None for one that is not known."""
    for sheet in sheets().values():
        if gpu is not None and re.fullmatch(sheet.names or re.escape(sheet.gpu), gpu):
            return sheet
    return None


def described(words: str) -> Sheet | None:
    """The device that a published table means by ``words``, "8xH100 SXM5" for example, or None."""
    low = words.lower()
    for sheet in sheets().values():
        if re.search(rf"(?<![a-wyz])({sheet.words})(?!\d)", low):
            return sheet
    return None


def peaks(gpu: str | None) -> Mapping[str, float]:
    """Peak FLOP/s by compute dtype of a device of that name; empty for one that is not known."""
    sheet = named(gpu)
    return {dtype: tflops * 1e12 for dtype, tflops in sheet.tflops.items()} if sheet else {}


def _sheet(table: Mapping[str, object]) -> Sheet:
    links = table["links"]
    assert isinstance(links, Mapping)
    rates = _numbers({name: links[name] for name in ("node_gb_s", "network_gb_s")})
    memory, tflops = (_numbers(table[key]) for key in ("memory", "tflops"))
    return Sheet(
        gpu=str(table["gpu"]),
        names=str(table.get("names", "")),
        words=str(table["words"]),
        memory_gib=int(memory["gib"]),
        memory_gb_s=memory["gb_s"],
        link=LinkClass(links["node"]),
        network=Network(links["network"]),
        link_gb_s=rates["node_gb_s"],
        network_gb_s=rates["network_gb_s"],
        mesh=int(links.get("mesh", 0)),
        tflops=tflops,
    )


def _numbers(value: object) -> dict[str, float]:
    assert isinstance(value, Mapping)
    return {str(name): float(number) for name, number in value.items()}
