"""AMD devices by the files of the kernel's driver: names, memory and links. No HIP context.

The layout is that of ``amdkfd`` (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c). Clocks, power
and errors are not read. This was written by the kernel's sources, without an AMD device.
"""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from harness.host.vendor import Gpu, Pair

NAME = "AMD"
NOTICE = "clocks, power and errors are not read; not yet tried on AMD hardware"
#: Of an io_link: PCI Express, xGMI (kfd_crat.h).
_PCIE = 2
_XGMI = 11
_KFD = Path("sys/class/kfd/kfd/topology/nodes")


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Every visible device; () without a driver."""
    return tuple(_gpu(place, node, root) for place, node in enumerate(_visible(root)))


def topology(root: Path = Path("/")) -> tuple[Pair, ...]:
    """Every pair of visible devices, joined by xGMI or over PCIe."""
    nodes = _visible(root)
    links = {int(node.name): _links(node) for node in nodes}
    return tuple(
        Pair(
            a=a,
            b=b,
            joined="xGMI" if links[int(first.name)].get(int(other.name)) == _XGMI else "PCIe",
            peer=int(other.name) in links[int(first.name)],
        )
        for (a, first), (b, other) in itertools.combinations(enumerate(nodes), 2)
    )


def driver(root: Path = Path("/")) -> str | None:
    """The version of the kernel's module; None without one, or if it is part of the kernel."""
    try:
        return (root / "sys/module/amdgpu/version").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _visible(root: Path) -> list[Path]:
    """The nodes that are GPUs, which ROCR_ and HIP_VISIBLE_DEVICES leave.

    HIP reads CUDA_VISIBLE_DEVICES where HIP_VISIBLE_DEVICES is not set; an empty text is unset.
    """
    nodes = sorted((root / _KFD).glob("[0-9]*"), key=lambda path: int(path.name))
    visible = [node for node in nodes if _properties(node).get("simd_count", 0)]
    by_hip = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
    for wanted in filter(None, (os.environ.get("ROCR_VISIBLE_DEVICES"), by_hip)):
        tokens = dict.fromkeys(token.strip() for token in wanted.split(","))
        places = [int(token) for token in tokens if token.isdigit()]
        visible = [visible[place] for place in places if place < len(visible)]
    return visible


def _gpu(place: int, node: Path, root: Path) -> Gpu:
    properties = _properties(node)
    card = root / f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device"
    memory = _text(card / "mem_info_vram_total")
    used = _text(card / "mem_info_vram_used")
    return Gpu(
        index=place,
        name=_text(card / "product_name") or f"AMD {_text(node / 'name')}",
        uuid=f"GPU-{properties.get('unique_id', place):016x}",
        memory_bytes=int(memory) if memory.isdigit() else None,
        mig=False,
        used_bytes=int(used) if used.isdigit() else None,
        bus_id=card.resolve().name if card.exists() else None,
    )


def _links(node: Path) -> dict[int, int]:
    """Return the kind of link (xGMI or PCIe) by the number of the node at its other end."""
    links = [_properties(link) for link in (node / "io_links").glob("*")]
    links += [_properties(link) for link in (node / "p2p_links").glob("*")]
    known = [link for link in links if {"node_to", "type"} <= link.keys()]
    kinds = sorted((link["type"], link["node_to"]) for link in known)  # xGMI last: it is used
    return {to: kind for kind, to in kinds if kind in (_PCIE, _XGMI)}


def _properties(folder: Path) -> Mapping[str, int]:
    """``name number`` a line."""
    lines = (line.split() for line in _text(folder / "properties").splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
