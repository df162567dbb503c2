"""Data sheets of known GPU models, and the hardware for which a run is planned (``--on``)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from harness.base.documents import from_doc
from harness.base.errors import SpecError
from harness.base.toml import check_table, keys_of, read_tables
from harness.host.fabric import LinkClass, MachineFabric, Network
from harness.host.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The data sheet of a GPU model.

    ``memory_gib`` is its memory in GiB, ``memory_gb_s`` is the memory bandwidth in GB/s, and
    ``tflops`` is the peak TFLOP/s by dtype. ``link_gb_s`` is the rate in GB/s at which a GPU sends
    to the GPUs of its node, and ``network_gb_s`` is the rate in GB/s at which it sends to GPUs of
    other nodes. ``link`` and ``network`` are the usual classes of these connections. ``mesh`` is
    the number of devices that are connected pairwise by direct links; 0 if this number depends on
    the node. ``names`` is a pattern for the name that NVML reports. ``words`` is a pattern for
    names in published tables.
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
    """Return every known model by its short name, such as ``h100``.

    More specific names come first.
    """
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {short: _sheet(table) for short, table in tables.items()}


def named(gpu: str | None) -> Sheet | None:
    """Return the model with this name in NVML, or None if it is unknown."""
    for sheet in sheets().values():
        if gpu is not None and re.fullmatch(sheet.names or re.escape(sheet.gpu), gpu):
            return sheet
    return None


def described(words: str) -> Sheet | None:
    """Return the model that a published table calls ``words``, such as "8xH100 SXM5", or None."""
    low = words.lower()
    for sheet in sheets().values():
        if re.search(rf"(?<![a-wyz])({sheet.words})(?!\d)", low):
            return sheet
    return None


def peaks(gpu: str | None) -> Mapping[str, float]:
    """Return the peak FLOP/s by compute dtype of the model with this name; empty if unknown."""
    sheet = named(gpu)
    return {dtype: tflops * 1e12 for dtype, tflops in sheet.tflops.items()} if sheet else {}


def _sheet(table: Mapping[str, object]) -> Sheet:
    """Return the data sheet in a table of ``devices.toml``."""
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
    """Return a table of numbers as floats."""
    assert isinstance(value, Mapping)
    return {str(name): float(number) for name, number in value.items()}


#: Assumed host memory of planned hardware, in GiB for each GPU.
HOST_GIB = 128


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Several nodes with identical machines.

    ``nodes`` has the number of GPUs on each node. ``link_bytes`` is the rate of each GPU inside a
    node, and ``network_bytes`` is its rate between nodes. Both are in B/s for one direction.
    """

    name: str
    machine: Machine
    nodes: tuple[int, ...]
    link_bytes: float
    network_bytes: float

    @property
    def slowest(self) -> float:
        """The rate, in B/s, of the slowest link in a ring over all GPUs."""
        return self.link_bytes if len(self.nodes) == 1 else self.network_bytes


#: Largest number of GPUs of a plan. Its time and memory grow with this number.
MOST_GPUS = 4096


def parse(text: str) -> Hardware:
    """Return the hardware that ``--on`` names: a text like ``64x8xh200``, or the path of a file.

    Raise SpecError if it is neither.
    """
    if Path(text).is_file():
        return _stated(Path(text))
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)x([a-z0-9-]+)", text.lower())
    if match is None or match[3] not in sheets():
        wrong = match[3] if match else text.lower()
        known = sheets()
        close = next(iter(get_close_matches(wrong, known, n=1)), "h100")
        number = "the number of GPUs is missing; try" if wrong in known else "no such hardware; try"
        counts = text[: -len(wrong)] if match else "8x"
        raise SpecError(
            f"--on {text}: {number} {counts}{close}",
            expected=f"GPUSxMODEL or NODESxGPUSxMODEL, such as 8xh100 or 64x8xh200 (known models:"
            f" {_known()}), or the path of a file",
            fix=f"--on {counts}{close}",
        )
    sheet = sheets()[match[3]]
    per_node, nodes = int(match[2]), int(match[1] or 1)
    if per_node * nodes > MOST_GPUS:
        raise SpecError(
            f"--on {text}: {per_node * nodes:,} GPUs",
            expected=f"at most {MOST_GPUS:,} GPUs, for which a plan can be computed in a minute",
            fix=f"--on {MOST_GPUS // 8}x8x{match[3]}",
        )
    return _of(text, sheet, per_node, nodes)


def _known() -> str:
    """Return the short names of all known models as one text."""
    return ", ".join(sheets())


def of_machine(name: str, machine: Machine, nodes: tuple[int, ...]) -> Hardware:
    """Return the hardware of an earlier run. Raise SpecError if there is no data sheet for it."""
    sheet = named(machine.gpu)
    if sheet is None:
        raise SpecError(
            f"--on {name}: the links of {machine.gpu or 'a CPU'} are unknown",
            expected=f"a run that was measured on one of these GPUs: {_known()}",
            fix="--on my.toml   # a file with a [[hardware]] table that has link_gb_s",
        )
    return Hardware(
        name=name,
        machine=machine,
        nodes=nodes,
        link_bytes=1e9 * sheet.link_gb_s,
        network_bytes=1e9 * sheet.network_gb_s,
    )


def _of(name: str, sheet: Sheet, gpus: int, nodes: int) -> Hardware:
    """Return hardware with this many GPUs on each node. Raise SpecError if there is no GPU."""
    if min(gpus, nodes) < 1:
        raise SpecError(
            f"--on {name} has no GPU", expected="at least 1 node with 1 GPU", fix="--on 8xh100"
        )
    machine = Machine(
        cpu="planned",
        num_cores=16 * gpus,
        memory_gib=HOST_GIB * gpus,
        gpu=sheet.gpu,
        num_gpus=gpus,
        gpu_memory_gib=sheet.memory_gib,
        host=name,
        kernel="",
        driver=None,
        fabric=MachineFabric(
            link=sheet.link if gpus > 1 else LinkClass.NONE,
            network=sheet.network,
            network_gbit_s=8 * sheet.network_gb_s * gpus,
        ),
    )
    return Hardware(
        name=name,
        machine=machine,
        nodes=(gpus,) * nodes,
        link_bytes=1e9 * sheet.link_gb_s,
        network_bytes=1e9 * sheet.network_gb_s,
    )


@dataclass(frozen=True, kw_only=True)
class StatedHardware:
    """A ``[[hardware]]`` table of a file.

    If ``gpu`` is a known model, its data sheet gives the values of keys that are missing.
    """

    gpu: str
    gpus: int
    nodes: int = 1
    memory_gib: int = 0
    link: LinkClass = LinkClass.UNKNOWN
    network: Network = Network.UNKNOWN
    link_gb_s: float = 0.0
    network_gb_s: float = 0.0


_KEYS = keys_of(StatedHardware)


def _stated(path: Path) -> Hardware:
    """Return the hardware in a file. Raise ConfigError with all mistakes in the file."""
    tables, problems = read_tables(path, "hardware", "--on")
    for table in tables:
        if check_table(table, _KEYS, problems, "hardware"):
            for key, value in table.values.items():
                if not isinstance(value, str) and not value > 0:
                    problems.add(table.lines[key], f"{key} = {value} is not above 0")
    if len(tables) != 1:
        problems.add(
            1,
            f"found {len(tables)} tables [[hardware]]",
            "write exactly one table, with gpu, gpus and nodes",
        )
    problems.raise_any()
    (table,) = tables
    asked = from_doc(StatedHardware, dict(table.values))
    if "link" in table.values and (asked.link is LinkClass.NONE) != (asked.gpus == 1):
        problems.add(
            table.lines["link"], f"link = {str(asked.link)!r} does not match {asked.gpus} GPUs"
        )
        problems.raise_any()
    known = sheets().get(asked.gpu.lower()) or named(asked.gpu)
    sheet = known or Sheet(gpu=asked.gpu, memory_gib=0, link_gb_s=0.0)
    stated = ("memory_gib", "link", "network", "link_gb_s", "network_gb_s")
    given = {name: getattr(asked, name) for name in stated if name in table.values}
    sheet = replace(sheet, **given)
    if not (sheet.memory_gib and sheet.link_gb_s):
        hint = f"add memory_gib = 80 and link_gb_s = 450, or use a known gpu: {_known()}"
        problems.add(table.lines["gpu"], f"memory and links of {asked.gpu!r} are unknown", hint)
        problems.raise_any()
    return _of(path.stem, sheet, asked.gpus, asked.nodes)
