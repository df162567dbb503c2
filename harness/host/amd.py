"""Read names, memory and links of AMD devices from files of the kernel's driver.

This needs no HIP context. The driver ``amdkfd`` defines the layout of the files (Linux,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c). Clocks, power and errors are not read. The module was
written from the kernel's sources and has not been tested with an AMD device.
"""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from harness.host.vendor import Gpu, Pair

NAME = "AMD"
NOTICE = "clocks, power and errors are not read; not yet tested on AMD hardware"
#: Types of an io_link: PCI Express and xGMI (kfd_crat.h).
_PCIE = 2
_XGMI = 11
#: The folder with a subfolder for each node (CPU or GPU), relative to the root.
_KFD = Path("sys/class/kfd/kfd/topology/nodes")


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return every visible device, or () without a driver."""
    return tuple(_gpu(place, node, root) for place, node in enumerate(_visible(root)))


def topology(root: Path = Path("/")) -> tuple[Pair, ...]:
    """Return every pair of visible devices, and whether xGMI or PCIe connects them."""
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
    """Return the version of the module amdgpu, or None if it is absent or built into the kernel."""
    try:
        return (root / "sys/module/amdgpu/version").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _visible(root: Path) -> list[Path]:
    """Return the folders of the GPUs that are visible.

    ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES select them. If the latter is unset or empty, HIP
    reads CUDA_VISIBLE_DEVICES instead.
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
    """Return the facts about the GPU in a folder; ``place`` is its number."""
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
    """Map the number of each connected node to the kind of link (xGMI or PCIe) to it."""
    links = [_properties(link) for link in (node / "io_links").glob("*")]
    links += [_properties(link) for link in (node / "p2p_links").glob("*")]
    known = [link for link in links if {"node_to", "type"} <= link.keys()]
    # xGMI links are sorted after PCIe links and replace them in the mapping. A pair that has both
    # uses xGMI.
    kinds = sorted((link["type"], link["node_to"]) for link in known)
    return {to: kind for kind, to in kinds if kind in (_PCIE, _XGMI)}


def _properties(folder: Path) -> Mapping[str, int]:
    """Return the properties of a node or link from its file, which has lines ``name number``."""
    lines = (line.split() for line in _text(folder / "properties").splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def _text(file: Path) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
