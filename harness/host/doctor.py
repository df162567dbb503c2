"""Check this machine for missing packages, wrong settings, old versions and leftover ranks."""

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
from harness.host import accelerators, admission, environment, loopback, machine, vendor
from harness.host.admission import Finding, Level

#: The table of minimum versions.
TABLE = Path(__file__).with_name("minimum_versions.toml")
_FIRMWARE = Path("/sys/class/infiniband")
_TOOLKIT = Path("/usr/local/cuda/version.json")


class Standing(StrEnum):
    """The outcome of a comparison of versions; SKIP means that a version is unknown."""

    OK = "ok"
    BELOW = "below"
    SKIP = "SKIP"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One entry of the table of minimum versions.

    ``least`` is the minimum version. A component with several release branches has ``trains``
    instead of ``least``. Each entry of ``trains`` is the minimum version of the branch with the
    same first number. ``why`` is the reason for the minimum, and ``source`` is a document that
    states it.
    """

    name: str
    why: str
    source: str
    least: str = ""
    trains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComparedVersion:
    """The version of a component on this machine (``here``), and the minimum (``wanted``)."""

    name: str
    here: str
    wanted: str
    standing: Standing
    source: str


def minimum_versions() -> list[Component]:
    """Return the entries of the table of minimum versions, in its order."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["component"]
    return [Component(**{**row, "trains": tuple(row.get("trains", ()))}) for row in rows]


def compared_versions() -> list[ComparedVersion]:
    """Compare the version of every component on this machine with its minimum."""
    return [compare_version(component, _here(component.name)) for component in minimum_versions()]


def compare_version(component: Component, here: str) -> ComparedVersion:
    """Compare a version with the minimum of its component; SKIP if a version is unknown."""
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
    """Return the numbers of a version: ``580.159.03`` gives [580, 159, 3], other texts []."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _here(name: str) -> str:
    """Return the version of a component, or "" if it cannot be read.

    Versions are read without root rights and without CUDA.
    """
    if name == "driver":
        return vendor.driver() or ""
    if name == "connectx firmware":
        return min(_firmware(), key=_numbers, default="")
    if name == "cuda toolkit":
        return _toolkit()
    return next(_packages(name), "")


def _packages(name: str) -> Iterator[str]:
    """Yield the version of each of these packages that is installed.

    The packages are ``name`` and its variants for CUDA 13 and 12, which NVIDIA distributes.
    """
    for package in (name, f"nvidia-{name}-cu13", f"nvidia-{name}-cu12"):
        try:
            yield metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _firmware() -> Iterator[str]:
    """Yield the firmware version of each ConnectX card."""
    for path in sorted(_FIRMWARE.glob("mlx5*/fw_ver")):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except OSError:
            continue


def _toolkit() -> str:
    """Return the version of the installed CUDA toolkit, or "" without one."""
    try:
        return str(json.loads(_TOOLKIT.read_text(encoding="utf-8"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def remove_paths(folder: Path, paths: Sequence[str]) -> None:
    """Remove these files and folders in ``folder``, which a training has written."""
    for path in paths:
        target = folder / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


#: Bytes of locked memory that RDMA needs.
_LOCKED = 32 << 30
#: Bytes of shared memory that NCCL and data loaders need.
_SHARED = 8 << 30
#: Seconds to wait until the agents of a killed program have ended.
_LEAVING_S = 8.0


def examine() -> list[Finding]:
    """Run all checks of installed software and settings.

    ``admission`` has the checks that decide whether measurements are valid.
    """
    return [check() for check in CHECKS]


def examination() -> dict[str, Json]:
    """Examine this machine for an agent.

    Return its facts, the findings of all checks, and the findings of the checks that decide whether
    verdicts are valid (``admission``).
    """
    decisive = admission.examine()
    return {
        "facts": machine.facts(),
        "findings": to_doc((*examine(), *decisive)),
        "admission": to_doc(decisive),
    }


def notes() -> list[str]:
    """Return the findings that are not OK, as sentences for a record."""
    return [
        f"{finding.check}: {finding.text}" for finding in examine() if finding.level is not Level.OK
    ]


def _found(check: str, good: bool, text: str, advice: str = "", bad: Level = Level.WARN) -> Finding:
    """Return a finding. Only a result that is not good gets the level ``bad`` and the advice."""
    level = Level.OK if good else bad
    return Finding(check=check, level=level, text=text, advice="" if good else advice)


def _torch() -> Finding:
    """Check that torch is installed and new enough."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        advice = "pip install -c constraints.txt torch"
        return _found("torch", False, "not installed", advice, Level.BAD)
    new = tuple(int(x) for x in version.split("+")[0].split(".")[:2]) >= (2, 11)
    return _found("torch", new, version, "torch >= 2.11 is needed", Level.BAD)


def _plugin() -> Finding:
    """Check that the pytest plugin of this package is installed."""
    good = "scaleproof" in {entry.name for entry in metadata.entry_points(group="pytest11")}
    text = "installed" if good else "not installed"
    return _found("pytest plugin", good, text, "pip install -e .", Level.BAD)


def _governor() -> Finding:
    """Check that the CPU frequency governor does not save power."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not path.is_file():
        return _found("cpu governor", True, "n/a (virtual machine or no cpufreq)")
    governor = path.read_text(encoding="utf-8").strip()
    advice = "cpupower frequency-set -g performance"
    return _found("cpu governor", governor == "performance", governor, advice)


def _loopback() -> Finding:
    """Check that this machine can reach itself."""
    why = loopback.unreachable()
    text = f"127.0.0.1 cannot be reached: {why}" if why else "127.0.0.1 can be reached"
    return _found("loopback", not why, text, loopback.FIX, Level.BAD)


def _shared_memory() -> Finding:
    """Check that /dev/shm is writable and has enough free space."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        advice = "mount /dev/shm, which NCCL and data loaders need"
        return _found("shared memory", False, "/dev/shm is missing", advice)
    if not os.access("/dev/shm", os.W_OK):
        advice = "mount -o remount,rw /dev/shm, which NCCL and data loaders need"
        return _found("shared memory", False, "/dev/shm is not writable", advice)
    text = f"{free >> 20} MiB free in /dev/shm"
    advice = "enlarge /dev/shm (containers: --shm-size)"
    enough = _SHARED if vendor.gpus() else 64 << 20
    return _found("shared memory", free > enough, text, advice)


def _files() -> Finding:
    """Check the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _found("open files", soft >= 1024, f"limit {soft}", "ulimit -n 4096")


def _gpus() -> Finding:
    """Check that torch is built for the GPUs of this machine."""
    if not vendor.gpus():
        return _found("gpus", True, "none: ranks run on CPUs with gloo")
    maker = vendor.present()
    version = metadata.version("torch")
    unfit = accelerators.no_gpu(accelerators.torch_build(), version, maker.NAME)
    title = machine.detect().title
    if unfit is not None:
        return _found("gpus", False, f"{title}, not used: {unfit.what}", unfit.fix)
    return _found("gpus", True, f"{title} ({maker.NOTICE})" if maker.NOTICE else title)


def _leftovers() -> Finding:
    """Check that there are no ranks or agents whose run has ended.

    Agents notice within seconds that their main program was killed, so the check waits for them to
    exit. Processes of a run in progress do not count.
    """
    gone_by = time.monotonic() + _LEAVING_S
    while (pids := admission.Workers().left()) and time.monotonic() < gone_by:
        time.sleep(0.2)
    processes = " ".join(map(str, pids))
    advice = f"end these processes, whose run has ended: kill {processes}"
    return _found(
        "leftover ranks", not processes, f"pids {processes}" if processes else "none", advice
    )


def _locked_memory() -> Finding:
    """Check the limit of locked memory on machines with an RDMA network."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    endless = soft == resource.RLIM_INFINITY
    text = "unlimited" if endless else f"limit {soft >> 20} MiB"
    advice = (
        "ulimit -l unlimited, because RDMA pins memory"
        " (Slurm: PropagateResourceLimitsExcept=MEMLOCK)"
    )
    needed = machine.detect().infiniband
    return _found("locked memory", endless or soft >= _LOCKED or not needed, text, advice)


def _clock() -> Finding:
    """Check that the kernel uses a fast clock source."""
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not path.is_file():
        return _found("clock source", True, "n/a")
    source = path.read_text(encoding="utf-8").strip()
    advice = "set clocksource=tsc on the kernel's command line, because this source is slow to read"
    return _found("clock source", source in machine.GOOD_CLOCKS, source, advice)


def _ways() -> Finding:
    """Check that no environment variable switches off a connection between devices."""
    machine_here = machine.detect()
    off = environment.switched_off(
        environment.recorded(), infiniband=machine_here.infiniband, num_gpus=machine_here.num_gpus
    )
    advice = "unset the variable, unless the connection does not work on this machine"
    return _found(
        "backends",
        not off,
        "; ".join(off) or "no connection between devices is switched off",
        advice,
    )


def _versions() -> Finding:
    """Compare every component with the table of minimum versions; unknown versions are skipped."""
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
    """Check the topology file that NCCL_TOPO_FILE names."""
    named = os.environ.get("NCCL_TOPO_FILE", "")
    if not named:
        return _found("topology file", True, "none: NCCL detects the topology")
    try:
        digest = hashlib.sha256(Path(named).read_bytes()).hexdigest()[:12]
    except OSError as error:
        advice = "mount it where ranks run, or unset NCCL_TOPO_FILE to let NCCL detect the topology"
        return _found("topology file", False, f"{named}: {error.strerror}", advice)
    return _found("topology file", True, f"{named}, sha256 {digest}")


#: The checks of ``examine``, in the order in which they are shown.
CHECKS: tuple[Callable[[], Finding], ...] = (
    _torch,
    _plugin,
    _governor,
    _clock,
    _loopback,
    _shared_memory,
    _locked_memory,
    _files,
    _gpus,
    _ways,
    _versions,
    _topology_file,
    _leftovers,
)
