"""Checks of this machine: missing packages, wrong settings, old versions and leftovers of ranks."""

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness.base.documents import Json, to_doc
from harness.host import accelerators, admission, environment, machine, vendor
from harness.host.admission import Finding, Level

TABLE = Path(__file__).with_name("minimum_versions.toml")
_FIRMWARE = Path("/sys/class/infiniband")
_TOOLKIT = Path("/usr/local/cuda/version.json")


class Standing(StrEnum):
    """The outcome of a comparison of versions."""

    OK = "ok"
    BELOW = "below"
    SKIP = "SKIP"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One line of the table: ``least`` of all, or of each ``train`` by its first number."""

    name: str
    why: str
    source: str
    least: str = ""
    trains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComparedVersion:
    """A component as it is here; ``wanted`` is the least that it should be."""

    name: str
    here: str
    wanted: str
    standing: Standing
    source: str


def minimum_versions() -> list[Component]:
    """The lines of the table, in its order."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["component"]
    return [Component(**{**row, "trains": tuple(row.get("trains", ()))}) for row in rows]


def compared_versions() -> list[ComparedVersion]:
    """Every component, as it is here."""
    return [compare_version(component, _here(component.name)) for component in minimum_versions()]


def compare_version(component: Component, here: str) -> ComparedVersion:
    """A version beside the least; SKIP where either of them is not known."""
    wanted = component.least
    if component.trains:
        line = _numbers(here)[:1]
        wanted = next((train for train in component.trains if _numbers(train)[:1] == line), "")
    standing = Standing.SKIP
    if _numbers(here) and wanted:
        standing = Standing.OK if _numbers(here) >= _numbers(wanted) else Standing.BELOW
    return ComparedVersion(
        name=component.name,
        here=here,
        wanted=wanted,
        standing=standing,
        source=component.source,
    )


def _numbers(version: str) -> list[int]:
    """``580.159.03`` as numbers; nothing of a text without any."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _here(name: str) -> str:
    """A component's version, where it can be read without root and without CUDA; else nothing."""
    if name == "driver":
        return vendor.driver() or ""
    if name == "connectx firmware":
        return min(_firmware(), key=_numbers, default="")
    if name == "cuda toolkit":
        return _toolkit()
    return next(_packages(name), "")


def _packages(name: str) -> Iterator[str]:
    """The installed package of that name, or NVIDIA's for the CUDA at hand."""
    for package in (name, f"nvidia-{name}-cu13", f"nvidia-{name}-cu12"):
        try:
            yield metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _firmware() -> Iterator[str]:
    for path in sorted(_FIRMWARE.glob("mlx5*/fw_ver")):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except OSError:
            continue


def _toolkit() -> str:
    try:
        return str(json.loads(_TOOLKIT.read_text(encoding="utf-8"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


SHM = Path("/dev/shm")
#: A younger file may be of a rank that is about to map it, in seconds.
YOUNG_S = 60.0


def remove_leftovers() -> int:
    """Remove NCCL's files of this user that no process maps; how many these were."""
    old = time.time() - YOUNG_S
    mapped: set[str] | None = None
    removed = 0
    for path in SHM.glob("nccl-*"):
        with contextlib.suppress(OSError):  # another agent is quicker
            facts = path.stat()
            if facts.st_uid != os.getuid() or facts.st_mtime > old:
                continue
            mapped = _mapped() if mapped is None else mapped
            if str(path) not in mapped:
                path.unlink()
                removed += 1
    return removed


def _mapped() -> set[str]:
    """Files that any process of this user maps."""
    paths: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            rows = (line.split(None, 5) for line in maps.read_text(encoding="utf-8").splitlines())
            paths |= {row[5] for row in rows if len(row) > 5}
    return paths


def remove_paths(folder: Path, paths: Sequence[str]) -> None:
    """Files and folders in ``folder`` that a training has written."""
    for path in paths:
        target = folder / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


#: Locked memory that RDMA needs, and shared memory that NCCL and data loaders do: bytes.
_LOCKED = 32 << 30
_SHARED = 8 << 30
#: How long the agents of a killed program take to end.
_LEAVING_S = 8.0


def examine() -> list[Finding]:
    """All checks of what is installed and set up; ``admission`` has those of the host itself."""
    return [check() for check in CHECKS]


def examination() -> dict[str, Json]:
    """Examines this machine for an agent: its facts, the findings of every check, and those that
    decide whether verdicts can stand.
    """
    decisive = admission.examine()
    return {
        "facts": machine.facts(),
        "findings": to_doc((*examine(), *decisive)),
        "admission": to_doc(decisive),
    }


def notes() -> list[str]:
    """Lists what is not as it should be, as sentences for a record."""
    return [
        f"{finding.check}: {finding.text}" for finding in examine() if finding.level is not Level.OK
    ]


def _found(check: str, good: bool, text: str, advice: str = "", bad: Level = Level.WARN) -> Finding:
    """A finding: advice only where something is not good."""
    level = Level.OK if good else bad
    return Finding(check=check, level=level, text=text, advice="" if good else advice)


def _torch() -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        advice = "pip install -c constraints.txt torch"
        return _found("torch", False, "not installed", advice, Level.BAD)
    new = tuple(int(x) for x in version.split("+")[0].split(".")[:2]) >= (2, 11)
    return _found("torch", new, version, "torch >= 2.11 is needed", Level.BAD)


def _plugin() -> Finding:
    good = "scaleproof" in {entry.name for entry in metadata.entry_points(group="pytest11")}
    text = "installed" if good else "not installed"
    return _found("pytest plugin", good, text, "pip install -e .", Level.BAD)


def _governor() -> Finding:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not path.is_file():
        return _found("cpu governor", True, "n/a (virtual machine or no cpufreq)")
    governor = path.read_text(encoding="utf-8").strip()
    advice = "cpupower frequency-set -g performance"
    return _found("cpu governor", governor == "performance", governor, advice)


def _shared_memory() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        advice = "mount /dev/shm: NCCL and data loaders need it"
        return _found("shared memory", False, "/dev/shm is missing", advice)
    text = f"{free >> 20} MiB free in /dev/shm"
    advice = "enlarge /dev/shm (containers: --shm-size)"
    enough = _SHARED if vendor.gpus() else 64 << 20
    return _found("shared memory", free > enough, text, advice)


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _found("open files", soft >= 1024, f"limit {soft}", "ulimit -n 4096")


def _gpus() -> Finding:
    if not vendor.gpus():
        return _found("gpus", True, "none: CPU ranks over gloo")
    maker = vendor.present()
    version = metadata.version("torch")
    unfit = accelerators.no_gpu(accelerators.torch_build(), version, maker.NAME)
    title = machine.detect().title
    if unfit is not None:
        return _found("gpus", False, f"{title}, left alone: {unfit.what}", unfit.fix)
    return _found("gpus", True, f"{title} ({maker.NOTICE})" if maker.NOTICE else title)


def _leftovers() -> Finding:
    """Ranks or agents of a run that is gone; those of one in progress are that one's.

    An agent notices within seconds that its program was killed: those that are still leaving get
    that time.
    """
    gone_by = time.monotonic() + _LEAVING_S
    while (pids := admission.Workers().left()) and time.monotonic() < gone_by:
        time.sleep(0.2)
    processes = " ".join(map(str, pids))
    advice = f"their run is gone, nobody else will end them: kill {processes}"
    return _found(
        "leftover ranks", not processes, f"pids {processes}" if processes else "none", advice
    )


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    endless = soft == resource.RLIM_INFINITY
    text = "unlimited" if endless else f"limit {soft >> 20} MiB"
    advice = "ulimit -l unlimited (Slurm: PropagateResourceLimitsExcept=MEMLOCK): RDMA pins memory"
    needed = machine.detect().infiniband
    return _found("locked memory", endless or soft >= _LOCKED or not needed, text, advice)


def _clock() -> Finding:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not path.is_file():
        return _found("clock source", True, "n/a")
    source = path.read_text(encoding="utf-8").strip()
    advice = "clocksource=tsc on the kernel's command line: this one is slow to read"
    return _found("clock source", source in machine.GOOD_CLOCKS, source, advice)


def _ways() -> Finding:
    """Ways between devices that the environment forbids although the hardware has them."""
    machine_here = machine.detect()
    off = environment.switched_off(
        environment.recorded(), infiniband=machine_here.infiniband, num_gpus=machine_here.num_gpus
    )
    advice = "unset it, unless the way is broken here"
    return _found("backends", not off, "; ".join(off) or "nothing is switched off", advice)


def _versions() -> Finding:
    """Every component beside the table of least versions; what is not known is SKIPped."""
    known = compared_versions()
    below = [version for version in known if version.standing is Standing.BELOW]
    good = [
        f"{version.name} {version.here}" for version in known if version.standing is Standing.OK
    ]
    skipped = [version.name for version in known if version.standing is Standing.SKIP]
    text = ", ".join(
        [f"{version.name} {version.here} is below {version.wanted}" for version in below] or good
    )
    text += f"; SKIP: {', '.join(skipped)}" if skipped else ""
    advice = "; ".join(f"{version.name}: {version.source}" for version in below)
    return _found("least versions", not below, text, advice)


def _topology_file() -> Finding:
    """The file that tells NCCL how this machine is wired, as its ranks see it."""
    named = os.environ.get("NCCL_TOPO_FILE", "")
    if not named:
        return _found("topology file", True, "none is named: NCCL looks by itself")
    try:
        digest = hashlib.sha256(Path(named).read_bytes()).hexdigest()[:12]
    except OSError as error:
        advice = "mount it where ranks run, or unset NCCL_TOPO_FILE: NCCL then guesses"
        return _found("topology file", False, f"{named}: {error.strerror}", advice)
    return _found("topology file", True, f"{named}, sha256 {digest}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _torch,
    _plugin,
    _governor,
    _clock,
    _shared_memory,
    _locked_memory,
    _files,
    _gpus,
    _ways,
    _versions,
    _topology_file,
    _leftovers,
)
