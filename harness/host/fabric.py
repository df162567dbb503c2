"""The fabric of a machine: the links between its GPUs, and its network to other nodes.

Two machines with the same GPUs and different fabrics are different hardware: an all-reduce can be a
hundred times slower on one of them. Therefore the fabric is part of a machine's identity.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.host.vendor import Gpu, Pair


class LinkClass(StrEnum):
    """The class of the links between the GPUs of one node, which is the class of the slowest pair.

    In class ``pcie-peer``, a GPU reads the memory of another one directly. In class ``pcie-host``,
    data are copied through the memory of the host. One reason is that the driver does not allow
    peer access (GeForce cards). Another is that the pair is connected through a CPU, where NCCL
    does not use peer access by default (NCCL_P2P_LEVEL). Class ``none`` means that the node has a
    single GPU.
    """

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE_PEER = "pcie-peer"
    PCIE_HOST = "pcie-host"
    UNKNOWN = "unknown"
    NONE = "none"


class Network(StrEnum):
    """The kind of network between nodes, according to the network cards of a node."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"
    UNKNOWN = "unknown"


#: Networks whose cards can read the memory of a GPU directly, without a copy through the host.
RDMA = frozenset({Network.INFINIBAND, Network.ROCE, Network.EFA})
#: Values that a threshold can require for the fabric of one node.
LINKS = tuple(map(str, LinkClass))
#: Values that a threshold can require for the fabric of several nodes.
NETWORKS = tuple(map(str, Network))
NAMES = tuple(dict.fromkeys([*LINKS, *NETWORKS]))
#: The name of a fabric in records of older versions, which did not record it.
UNKNOWN = str(LinkClass.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class MachineFabric:
    """The links inside a node and the network between nodes.

    ``link_gb_s`` is the rate of a GPU's links in GB/s, as the driver reports it. ``network_gbit_s``
    is the total rate of the node's network cards in Gbit/s. Both are for one direction, and 0 if
    unknown. The cards are grouped by kind and rate, and only the group with the highest total rate
    is included, because a slower card usually serves storage.
    """

    link: LinkClass
    link_gb_s: float = 0.0
    network: Network = Network.UNKNOWN
    network_gbit_s: float = 0.0

    @property
    def name(self) -> str:
        """The link and the network with its rate: ``nvswitch, infiniband of 3200 Gbit/s``."""
        rate = f" of {self.network_gbit_s:g} Gbit/s" if self.network_gbit_s else ""
        network = "" if self.network is Network.UNKNOWN else f", {self.network}{rate}"
        return f"{self.link}{network}"

    def __str__(self) -> str:
        return self.name

    @property
    def kinds(self) -> str:
        """The link and the network without rates: ``nvswitch, infiniband``."""
        return f"{self.link}, {self.network}"

    def between(self, num_nodes: int) -> str:
        """Return the name of the connection between ranks on ``num_nodes`` nodes."""
        return str(self.link if num_nodes == 1 else self.network)

    def identity(self, num_nodes: int) -> str:
        """Return the kinds and rates of the connections as text.

        Results of ``num_nodes`` nodes are comparable only if this text is identical.
        """
        link = f"{self.link} of {self.link_gb_s:g} GB/s"
        if num_nodes == 1:
            return link
        return f"{self.network} of {self.network_gbit_s:g} Gbit/s, {link}"


def between(fabric: MachineFabric | None, num_nodes: int) -> str:
    """Return the name of the connection between ranks, or ``unknown`` without a recorded fabric."""
    return UNKNOWN if fabric is None else fabric.between(num_nodes)


def is_unknown(name: str) -> bool:
    """Return whether this is the name of an unknown fabric, which cannot be compared."""
    return name.startswith(UNKNOWN)


def detect(
    gpus: Sequence[Gpu], pairs: Sequence[Pair], sys: Path = Path("/sys"), cpu: str = ""
) -> MachineFabric:
    """Return the fabric of this machine.

    Args:
        gpus: Every visible GPU.
        pairs: Every pair of visible GPUs, as ``vendor.topology`` returns them.
        sys: The folder in which the kernel's sysfs is mounted.
        cpu: The model of the CPU.
    """
    network, gbit_s = _network(sys)
    link = _link(gpus, pairs, cpu)
    over_nvlink = link in (LinkClass.NVSWITCH, LinkClass.NVLINK)
    rates = [gpu.nvlink_gb_s if over_nvlink else gpu.pcie_gb_s for gpu in gpus]
    known = [] if link is LinkClass.XGMI else [rate for rate in rates if rate]
    return MachineFabric(
        link=link,
        link_gb_s=min(known, default=0.0),
        network=network,
        network_gbit_s=gbit_s,
    )


#: Links over which NCCL forwards data. Therefore not every pair of GPUs needs a direct link.
_MESHES = {"NVLink": LinkClass.NVLINK, "xGMI": LinkClass.XGMI}
#: Paths between PCIe devices that do not lead through a CPU.
_BELOW_CPU = ("internal", "PIX", "PXB")


def _link(gpus: Sequence[Gpu], pairs: Sequence[Pair], cpu: str) -> LinkClass:
    """Return the class of the links between these GPUs."""
    if any(gpu.mig for gpu in gpus):
        return LinkClass.UNKNOWN
    if len(gpus) == 1:
        return LinkClass.NONE
    for joined, mesh in _MESHES.items():
        direct = [pair for pair in pairs if pair.joined == joined]
        if _connected(len(gpus), direct):
            switched = all(pair.switched for pair in direct)
            return LinkClass.NVSWITCH if switched and joined == "NVLink" else mesh
    over_pcie = [pair for pair in pairs if pair.joined not in _MESHES]
    if not over_pcie or any(pair.peer is None for pair in over_pcie):
        return LinkClass.UNKNOWN
    # The default of NCCL (src/graph/paths.cc, ncclTopoCheckP2p).
    through_cpu = len(gpus) <= 2 and "AMD" in cpu
    peers = (pair.peer and (through_cpu or pair.joined in _BELOW_CPU) for pair in over_pcie)
    return LinkClass.PCIE_PEER if all(peers) else LinkClass.PCIE_HOST


def _connected(num_gpus: int, pairs: Collection[Pair]) -> bool:
    """Return whether every GPU can reach all other GPUs over the links of these pairs."""
    ends = [{pair.a, pair.b} for pair in pairs]
    reached = set().union(*ends[:1])
    for _ in range(num_gpus):
        reached = reached.union(*(both for both in ends if both & reached))
    return len(reached) == num_gpus


def _network(sys: Path) -> tuple[Network, float]:
    """Return the kind of the node's network cards, and their total rate in Gbit/s.

    Ethernet cards are used only if the node has no RDMA card.
    """
    cards = Counter(_rdma(sys)) or Counter(_ethernet(sys))
    together = {(rate * count, count, kind) for (kind, rate), count in cards.items()}
    gbit_s, _, kind = max(together, default=(0.0, 0, Network.UNKNOWN))
    return kind, gbit_s


def _rdma(sys: Path) -> Iterator[tuple[Network, float]]:
    """Yield (kind, Gbit/s) of each active RDMA port, except of software devices (RXE) and iWARP."""
    for port in (sys / "class/infiniband").glob("*/ports/*"):
        card = port.parents[1]
        real = (card / "device").exists() and not _read(card / "node_type").startswith("4")
        if real and not _virtual(card) and _read(port / "state").endswith(": ACTIVE"):
            yield _kind(card, _read(port / "link_layer")), _number(_read(port / "rate"))


def _ethernet(sys: Path) -> Iterator[tuple[Network, float]]:
    """Yield (ethernet, Gbit/s) of each card that is up, except IPoIB and members of a bond."""
    for card in (sys / "class/net").glob("*"):
        over_infiniband = _read(card / "type") == "32"
        represents = "vf" in _read(card / "phys_port_name")  # a virtual function's other end
        behind = (card / "master/device").exists() or represents
        physical = (card / "device").exists() and not _virtual(card)
        if physical and not over_infiniband and not behind and _read(card / "operstate") == "up":
            yield Network.ETHERNET, max(0.0, _number(_read(card / "speed"))) / 1000


def _virtual(card: Path) -> bool:
    """Return whether this is a virtual function of another card on this machine."""
    return any((card / "device/physfn" / card.parent.name).glob("*"))


def _kind(card: Path, link_layer: str) -> Network:
    """Return the kind of network of an RDMA card."""
    driver = (card / "device/driver").resolve().name
    if driver == "efa":
        return Network.EFA
    return Network.INFINIBAND if link_layer == "InfiniBand" else Network.ROCE


def _number(text: str) -> float:
    """Return the number at the start of a text, such as ``400 Gb/sec (4X NDR)``, or 0."""
    match = re.match(r"\s*-?\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0


def _read(path: Path) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
