"""``doctor``: what is missing or set up wrongly, and what to do. Changes nothing."""

import hashlib
import os
import resource
import shutil
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from harness.base.documents import Json, to_doc
from harness.host import accelerators, admission, environment, facts, machine, vendor, versions
from harness.host.admission import Finding, Level
from harness.host.versions import Standing

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
        "facts": facts.facts(),
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
    return _found("clock source", source in facts.GOOD_CLOCKS, source, advice)


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
    known = versions.compared()
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
