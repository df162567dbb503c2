"""The fabric of a machine: what joins its GPUs to each other, and its nodes to other nodes.

Two machines with the same GPUs and another fabric are different hardware: an all-reduce is up to a
hundred times slower over the slower one. So the fabric is part of a machine's identity.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.host.vendor import Gpu, Pair


class LinkClass(StrEnum):
    """The class of the links that join the GPUs of one node: that of the slowest pair.

    ``pcie-peer``: a GPU reads the memory of another one directly. ``pcie-host``: data are copied
    through the memory of the host, because the driver allows no peer access (GeForce cards), or
    because the pair is on two sockets, where NCCL does not use it by default (NCCL_P2P_LEVEL).
    ``none``: the node has a single GPU.
    """

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE_PEER = "pcie-peer"
    PCIE_HOST = "pcie-host"
    UNKNOWN = "unknown"
    NONE = "none"


class Network(StrEnum):
    """The kind of the network that joins a node to others: the best of its active cards."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"
    UNKNOWN = "unknown"


#: Networks over which a GPU's memory is read without its host.
RDMA = frozenset({Network.INFINIBAND, Network.ROCE, Network.EFA})
#: Every name that a rule can require of a fabric.
NAMES = tuple(dict.fromkeys([*map(str, LinkClass), *map(str, Network)]))
#: The fabric of a machine that an older version recorded.
UNKNOWN = str(LinkClass.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class MachineFabric:
    """The links inside a node and the network between nodes.

    ``link_gb_s`` is the rate of a GPU's links by the driver, in GB/s, ``network_gbit_s`` that of
    all active cards of the network's kind together, in Gbit/s; both in one direction, 0 if unknown.
    """

    link: LinkClass
    link_gb_s: float = 0.0
    network: Network = Network.UNKNOWN
    network_gbit_s: float = 0.0

    @property
    def name(self) -> str:
        """``nvswitch, infiniband of 3200 Gbit/s``"""
        rate = f" of {self.network_gbit_s:g} Gbit/s" if self.network_gbit_s else ""
        network = "" if self.network is Network.UNKNOWN else f", {self.network}{rate}"
        return f"{self.link}{network}"

    def __str__(self) -> str:
        return self.name

    def between(self, num_nodes: int) -> str:
        """The name of what joins the ranks of a world on so many nodes."""
        return str(self.link if num_nodes == 1 else self.network)


def between(fabric: MachineFabric | None, num_nodes: int) -> str:
    """The name of what joins the ranks of a world; ``unknown`` for a record that has no fabric."""
    return UNKNOWN if fabric is None else fabric.between(num_nodes)


def is_unknown(name: str) -> bool:
    """Whether this is the name of a fabric that nobody knows: it is comparable with nothing."""
    return name.startswith(UNKNOWN)


def detect(gpus: Sequence[Gpu], pairs: Sequence[Pair], sys: Path = Path("/sys")) -> MachineFabric:
    """Return the fabric of this machine.

    Args:
        gpus: every visible GPU.
        pairs: every pair of visible GPUs, as ``nvml.topology`` returns them.
        sys: where the kernel's view of devices is mounted.
    """
    network, gbit_s = _network(sys)
    link = LinkClass.NONE if len(gpus) == 1 else _slowest(pairs)
    over_nvlink = link in (LinkClass.NVSWITCH, LinkClass.NVLINK)
    rates = [gpu.nvlink_gb_s if over_nvlink else gpu.pcie_gb_s for gpu in gpus]
    return MachineFabric(
        link=link,
        link_gb_s=min((rate for rate in rates if rate), default=0.0),
        network=network,
        network_gbit_s=gbit_s,
    )


#: From the fastest link to the slowest.
_ORDER = list(LinkClass)


def _slowest(pairs: Collection[Pair]) -> LinkClass:
    return max(map(_link, pairs), key=_ORDER.index, default=LinkClass.UNKNOWN)


def _link(pair: Pair) -> LinkClass:
    if pair.joined == "NVLink":
        return LinkClass.NVSWITCH if pair.switched else LinkClass.NVLINK
    if pair.joined == "xGMI":
        return LinkClass.XGMI
    if pair.peer is None:
        return LinkClass.UNKNOWN
    return LinkClass.PCIE_PEER if pair.peer and pair.joined != "SYS" else LinkClass.PCIE_HOST


def _network(sys: Path) -> tuple[Network, float]:
    """The kind of the best active cards, and their rates together in Gbit/s."""
    rates: dict[Network, float] = {}
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in _read(port / "state"):
            kind = _kind(port.parents[1], _read(port / "link_layer"))
            rates[kind] = rates.get(kind, 0.0) + _number(_read(port / "rate"))
    for card in sorted((sys / "class/net").glob("*")):
        physical = (card / "device").exists()
        if physical and _read(card / "operstate") == "up":
            megabits = max(0.0, _number(_read(card / "speed")))
            rates[Network.ETHERNET] = rates.get(Network.ETHERNET, 0.0) + megabits / 1000
    for kind in Network:
        if kind in rates:
            return kind, rates[kind]
    return Network.UNKNOWN, 0.0


def _kind(card: Path, link_layer: str) -> Network:
    driver = (card / "device/driver").resolve().name
    if driver == "efa":
        return Network.EFA
    return Network.INFINIBAND if link_layer == "InfiniBand" else Network.ROCE


def _number(text: str) -> float:
    """The number that a text begins with, or 0: ``400 Gb/sec (4X NDR)``, ``-1``."""
    match = re.match(r"\s*-?\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
