"""The steps: ``python steps.py NAME OUT [--dry]`` runs one of them.

It adds its checks to OUT/checks.json and its measurements to OUT/evidence.tar.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import alone
import numpy as np
import torch

from harness.analysis.timeline.close import budget_of
from harness.base.documents import from_doc, to_doc
from harness.base.errors import SpecError
from harness.cases import CaseSpec, Catalogue, Device, Precision, Site
from harness.host import nvml, vendor
from harness.host.devices import peaks
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import Bits, Deadlines, Gate, LaunchSpec, Task, Timed
from harness.record import Described, RankRecord, Term

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KNOWN = Catalogue([HERE / "planted"])
SITE = Site(device=Device.CUDA, backend="nccl", nodes=(1,))
#: Two ranks share the GPU over gloo, because NCCL requires a separate device for each rank.
SHARED = Site(device=Device.CUDA, backend="gloo", nodes=(2,), shared_gpu=True)
USUAL = Deadlines()
#: Largest size, in bytes, of a file in the evidence.
LARGE = 4_000_000
STRATEGIES = ("single", "ddp", "fsdp", "pipeline", "tensor_parallel")
CODECS = ("topk", "powersgd", "int8", "qsgd", "signsgd")


class Step:
    """The results of a step. A check passes (True), fails (False) or could not be made (None)."""

    def __init__(self, name: str, out: Path, dry: bool) -> None:
        self.name, self.out, self.dry = name, out, dry
        self.folder = Path(tempfile.mkdtemp(prefix=f"scaleproof-{name}-"))
        self.checks: list[dict[str, Any]] = []
        self._archived: dict[Path, int] = {}

    def check(self, what: str, ok: bool | None, seen: object = "") -> None:
        """Add a check, and write it to disk with its evidence."""
        self.checks.append({"what": what, "ok": ok, "seen": str(seen)})
        print("not checked" if ok is None else "ok" if ok else "BAD", what, seen, flush=True)
        self._write("")

    def on_device(self, what: str, ok: bool, seen: object = "") -> None:
        """Add a check of timings or kernels, which cannot be made on the simulated device."""
        self.check(what, None if self.dry else ok, seen)

    def keep(self, name: str, document: object) -> None:
        """Keep a document as evidence."""
        (self.folder / f"{name}.json").write_text(json.dumps(document, indent=1, default=str))

    def done(self) -> None:
        """Mark the step as complete, so that ``--resume`` skips it."""
        self._write("FAIL" if any(c["ok"] is False for c in self.checks) else "PASS")

    def _write(self, result: str) -> None:
        file = self.out / "checks.json"
        known = json.loads(file.read_text()) if file.is_file() else {}
        known[self.name] = {"result": result, "checks": self.checks}
        file.write_text(json.dumps(known, indent=1))
        with tarfile.open(self.out / "evidence.tar", "a") as tar:
            for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
                facts = path.stat()
                if facts.st_size < LARGE and self._archived.get(path) != facts.st_mtime_ns:
                    self._archived[path] = facts.st_mtime_ns
                    tar.add(path, f"{self.name}/{path.relative_to(self.folder)}")

    @contextlib.contextmanager
    def worlds(self, site: Site = SITE) -> Iterator[Fleet]:
        where = Where(nodes=site.nodes, device=Device.CUDA, shared_gpu=site.shared_gpu)
        fleet = open_worlds(KNOWN.get("engines", "local"), where)
        try:
            yield fleet
        finally:
            fleet.close()

    def case(self, name: str, site: Site = SITE, **fields: Any) -> CaseSpec:
        return KNOWN.normalise(site.case(name, **fields))

    @property
    def model(self) -> str:
        """The model to measure; on the simulated device, one that the host can compute."""
        return "decoder-nano" if self.dry else "decoder-350m"

    def launch(
        self, fleet: Fleet, case: CaseSpec, task: Task, name: str, deadlines: Deadlines = USUAL
    ) -> tuple[Described, list[RankRecord], str]:
        """Launch a world; return its description, its ranks' records and the cause of a failure."""
        files, out = KNOWN.files(case), self.folder / "launches" / name
        described = fleet.describe([(case, files)])[0]
        if described.error or described.unsupported:
            return described, [], described.error or described.unsupported
        if isinstance(task, Gate):
            task = Gate(twin=KNOWN.twin(case, described.twin))
        spec = LaunchSpec(
            launch=name, case=case, out=str(out), files=files, task=task, deadlines=deadlines
        )
        ended = fleet.launch(spec, lambda step: None)
        paths = sorted(out.glob("rank?.json"))
        ranks = [from_doc(RankRecord, json.loads(path.read_text())) for path in paths]
        cause = causes.attribute(ended.ranks, ended.unreachable)
        return described, ranks, "" if cause is None else f"rank {cause.rank}: {cause.message}"

    def scaleproof(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def facts(step: Step) -> None:
    """Record the facts of the machine, and check that ranks can be forked on it."""
    smi = subprocess.run("nvidia-smi -q", shell=True, capture_output=True, text=True, check=False)
    (step.folder / "nvidia-smi.txt").write_text(smi.stdout + smi.stderr)
    devices, times = vendor.gpus(), []
    step.keep("gpus", [to_doc(g) for g in devices])
    step.keep("topology", vendor.topology())
    for _ in range(10):
        began = time.perf_counter()
        step.keep("poll", nvml.poll())
        times.append(time.perf_counter() - began)
    step.keep("versions", {
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "driver": vendor.driver(), "poll_s": times,
    })  # fmt: skip
    unknown = [f for g in devices for f, v in to_doc(g).items() if v is None]
    step.check("NVML answers every question", not unknown, unknown)
    step.on_device("a poll takes at most 0.1 s", median(times) < 0.1, f"{median(times):.3f} s")
    output = alone.forks(5)
    step.keep("children", output)
    step.check(
        "importing the agent starts neither thread nor driver", output["clean"], output["threads"]
    )
    step.check(
        "five forked children computed", all(c["code"] == 0 for c in output["children"]), output
    )
    slowest = max(c["s"] for c in output["children"])
    step.on_device("a child takes at most 3 s", slowest < 3, f"{slowest:.2f} s")


def first(step: Step) -> None:
    """Check that a timed launch and a profiled launch return measurements."""
    with step.worlds() as fleet:
        for name, profiled in ((f"single/{step.model}", 0), (f"ddp/{step.model}", 4)):
            task = Timed(steps=12, cut=4, draw=1, profiled=profiled)
            case = step.case(name, precision=Precision.AUTOCAST)
            _, ranks, why = step.launch(fleet, case, task, name.replace("/", "-"))
            step.check(f"{name} is timed", bool(ranks) and not why, why)
            if not ranks or why:
                continue
            window_s, peak = ranks[0].window_s, ranks[0].peak_bytes
            seen = f"{window_s:.3f} s, {peak} B"
            step.check(f"{name}: a window, a peak", window_s > 0 and bool(peak), seen)
            if profiled:
                size = step.folder / "launches" / name.replace("/", "-") / "rank0.trace.json.gz"
                step.check(f"{name}: a trace is there", size.is_file(), size.stat().st_size)


def nccl(step: Step) -> None:
    """Check that scaleproof records every collective of a world of one rank with its bytes."""
    log = alone.recorded(p2p=not step.dry)
    step.keep("recorded", log)
    step.check("the backend is NCCL", log["backend"] == "nccl", log["backend"])
    for name, wanted in log["wanted"].items():
        seen = log["issued"].get(name)
        step.check(f"{name} is recorded with its bytes", seen == wanted, f"{seen}, issued {wanted}")


def gates(step: Step) -> None:
    """Run the correctness checks of common strategies and compressors.

    The margin of every check is kept as evidence as soon as it is known.
    """
    cases = [
        (f"{strategy}/decoder-nano", precision)
        for precision in (Precision.FP32, Precision.AUTOCAST, Precision.BF16)
        for strategy in STRATEGIES
    ]
    cases += [(f"compressed:{codec}/mlp-nano", Precision.FP32) for codec in CODECS]
    _gated(step, SITE, cases)


def _gated(step: Step, site: Site, cases: Sequence[tuple[str, Precision]]) -> None:
    """Check that each case trains correctly at this site, or is refused in one sentence."""
    margins: dict[str, float] = {}
    with step.worlds(site) as fleet:
        for number, (name, precision) in enumerate(cases):
            try:
                case = step.case(name, site, precision=precision)
            except SpecError as error:
                step.check(f"{name} {precision} is refused with a fix", bool(error.fix), error.what)
                continue
            if step.dry and _of_framework(name):
                step.on_device(f"{name} {precision}", False, "the framework calls CUDA directly")
                continue
            described, ranks, why = step.launch(fleet, case, Gate(twin=case), f"gate{number}")
            if described.unsupported:
                step.check(f"{name} {precision} is refused in one sentence", "\n" not in why, why)
                continue
            failed = [c for r in ranks for c in r.checks if not c.ok]
            for c in (c for r in ranks for c in r.checks if c.limit and c.value is not None):
                at = f"{name} {precision} {c.name}"
                margins[at] = max(margins.get(at, 0.0), c.value / c.limit)
            step.keep("margins", dict(sorted(margins.items(), key=lambda m: -m[1])))
            step.check(
                f"{name} {precision}", bool(ranks) and not why and not failed, why or failed[:3]
            )


def _of_framework(name: str) -> bool:
    """Return whether the strategy of a case needs a package other than torch."""
    strategy = KNOWN.entries["strategies"][re.split("[:/]", name)[0]]
    return bool(strategy.head["SUPPORTS"].get("packages"))


def truth(step: Step) -> None:
    """Compare the step times of launches and of a plain loop, which take turns."""
    case = step.case(f"single/{step.model}", precision=Precision.AUTOCAST)
    steps, bare, ours, record = (12 if step.dry else 60), list[float](), list[float](), None
    with step.worlds() as fleet:
        for turn in range(2):
            bare.append(alone.bare_loop(KNOWN, case, steps))
            task = Timed(steps=steps, cut=steps // 3, draw=1)
            described, ranks, why = step.launch(fleet, case, task, f"timed{turn}")
            step.check(f"launch {turn} ends well", bool(ranks) and not why, why)
            if ranks:
                with np.load(step.folder / "launches" / f"timed{turn}" / "rank0.npz") as samples:
                    ours.append(median(samples["step_s"][steps // 3 :].tolist()))
        _, gated, _ = step.launch(fleet, case, Gate(twin=case), "gate")
        record = gated[0] if gated else None
    step.keep("steps", {"bare_s": bare, "launches_s": ours})
    if ours:
        off = median(ours) / median(bare) - 1
        step.on_device("within 1 % of a bare loop", abs(off) < 0.01, f"{off:+.2%}")
        flops = described.facts.flops_per_sample * described.expected.global_batch / median(ours)  # type: ignore[union-attr]
        peak = peaks(vendor.gpus()[0].name).get(case.dtype)
        step.keep("mfu", {"flops": flops, "peak": peak, "mfu": None if not peak else flops / peak})
        step.on_device(
            "MFU is between 0 and 1", peak is None or 0 < flops / peak < 1, peak and flops / peak
        )
    if record is not None and record.ceiling is not None:
        ones = alone.product_of_ones(256 if step.dry else 8192)
        ceiling = record.ceiling.matmul_flops
        step.keep("ceilings", {"random": to_doc(record.ceiling), "ones_flops": ones})
        step.on_device(
            "products of random matrices are not faster than products of ones",
            ceiling < 1.05 * ones,
            ceiling / ones,
        )


def repeatable(step: Step) -> None:
    """Check that two launches compute identical bits: a healthy GPU must not be reported."""
    model = (
        "decoder-nano" if step.dry else "decoder-124m"
    )  # small, because all its parameters go through a file
    case = step.case(f"ddp/{model}", precision=Precision.AUTOCAST)
    with step.worlds() as fleet:
        hashes = []
        for turn in range(2):
            _, ranks, why = step.launch(fleet, case, Bits(steps=3), f"bits{turn}")
            step.check(f"hashes of launch {turn}", bool(ranks) and not why, why)
            path = step.folder / "launches" / f"bits{turn}" / "rank0.npz"
            if path.is_file():
                with np.load(path) as arrays:
                    hashes.append({k: arrays[k].tolist() for k in ("bits", "received", "stored")})
    if len(hashes) == 2:
        unlike = [k for k in hashes[0] if hashes[0][k] != hashes[1][k]]
        step.check("two launches compute the same bits", not unlike, unlike)
    for claimed in (True, False):
        step.keep(f"attention-{claimed}", seen := alone.attention(claimed))
        if claimed:
            step.check("attention uses matrix products if bits must repeat", seen == "math", seen)


def memory(step: Step) -> None:
    """Record the ratio of each memory peak to its closed form, without judging it."""
    large = [
        ("decoder-350m", dict(precision=Precision.AUTOCAST)), ("decoder-350m", {}),
        ("decoder-350m", dict(checkpoint=True, precision=Precision.AUTOCAST)),
        ("decoder-1b3", dict(checkpoint=True, precision=Precision.AUTOCAST)),
        ("decoder-175m", dict(micro_batch=64, precision=Precision.AUTOCAST)),
    ]  # fmt: skip
    small = [("decoder-nano", {}), ("decoder-nano", dict(checkpoint=True))]
    ratios: dict[str, float] = {}
    with step.worlds() as fleet:
        for number, (model, fields) in enumerate(small if step.dry else large):
            case = step.case(f"single/{model}", **fields)
            task = Timed(steps=4, cut=2, draw=1)
            described, ranks, why = step.launch(fleet, case, task, f"peak{number}")
            if "memory" in why:
                step.check(f"{case.id} does not fit, and the error says this", True, why[:80])
                continue
            step.check(f"{case.id} ends well", bool(ranks) and not why, why)
            if ranks and described.expected is not None:
                ratios[case.id] = (ranks[0].peak_bytes or 0) / described.expected.memory_bytes
                step.keep("peak_over_form", ratios)
    step.check("measured and computed peak memory were compared", bool(ratios), ratios)


def profile(step: Step) -> None:
    """Check that an injected sleep and injected kernels appear in the correct budget terms."""
    plants = {"none": {}, "sleep": {"late.sleep_ms": 300.0}, "kernel": {"late.products": 20}}
    terms: dict[str, dict[str, float]] = {}
    with step.worlds() as fleet:
        for name, knobs in plants.items():
            case = step.case(f"late/{step.model}", knobs=knobs, precision=Precision.AUTOCAST)
            task = Timed(steps=16, cut=4, profiled=6, draw=1)
            _, ranks, why = step.launch(fleet, case, task, name)
            step.check(f"profiled launch {name} ends well", bool(ranks) and not why, why)
            if step.dry or not ranks:
                continue
            budget = budget_of(step.folder, name, ranks, 6, talks=False)
            step.check(f"{name}: the budget closes", budget.device == "cuda", budget.unsure)
            terms[name] = {str(t): budget.mean_ns(t) / 1e6 for t in Term}
            step.keep("terms_ms", terms)
    if len(terms) == len(plants):
        slept = terms["sleep"][Term.IDLE] - terms["none"][Term.IDLE]
        longer = sum(terms["sleep"].values()) - sum(terms["none"].values())
        # Under the profiler the host is slower after a sleep, by 32 ms on an H200. The limit allows
        # this.
        seen = f"the step is {longer:.1f} ms longer, of which {slept:.1f} ms count as idle"
        step.check("300 ms of sleep count as idleness", slept > 285 and slept > 0.95 * longer, seen)
        more = terms["kernel"][Term.COMPUTE] - terms["none"][Term.COMPUTE]
        step.check("an injected kernel counts as compute", more > 0, f"{more:+.2f} ms")
    else:
        step.on_device("300 ms of sleep count as idleness", False, "no budget")


def kept(step: Step) -> None:
    """Compare several trainings in one process with trainings in fresh processes (A/A)."""
    case = step.case(f"single/{step.model}", precision=Precision.AUTOCAST)
    steps, times = (6, 2) if step.dry else (40, 4)
    stays = alone.loops_of_one(KNOWN, case, steps, times)
    fresh = [alone.bare_loop(KNOWN, case, steps) for _ in range(times)]
    step.keep("steps", {"kept_s": stays, "fresh_s": fresh})
    off = median(stays[1:]) / median(fresh) - 1
    step.on_device(
        "one process is as fast as fresh ones, within 1 %", abs(off) < 0.01, f"{off:+.2%}"
    )


def cache(step: Step) -> None:
    """Check that strategies use the graphs that Inductor compiled for the plain model."""
    if step.dry:
        return step.check("strategies use the same graphs", None)
    case = step.case(f"single/{step.model}", precision=Precision.AUTOCAST)
    counted = alone.cached_graphs(KNOWN, case)
    step.keep("graphs", counted)
    for wrapper in ("ddp", "fsdp"):
        seen = counted[wrapper]
        step.check(
            f"{wrapper} uses the graphs of the plain model",
            not seen["miss"] and seen["hit"] > 0,
            seen,
        )
    return None


def frameworks(step: Step) -> None:
    """Test Lightning's Trainer and DeepSpeed, if they are installed."""
    if importlib.util.find_spec("lightning") is None:
        step.check(
            "Lightning's Trainer is measured", None, "not installed; pass --wheels to install it"
        )
    else:
        command = [sys.executable, "-m", "pytest", "-q", "tests/training/script/test_callbacks.py"]
        done = subprocess.run(
            [*command, "-k", "lightning"], capture_output=True, text=True, check=False, cwd=ROOT
        )
        step.check("Lightning's Trainer is measured", done.returncode == 0, done.stdout[-300:])
    if importlib.util.find_spec("deepspeed") is None:
        step.check("DeepSpeed trains correctly", None, "not installed; pass --wheels to install it")
        return
    with step.worlds() as fleet:
        case = step.case("deepspeed/decoder-nano", precision=Precision.BF16)
        _, ranks, why = step.launch(fleet, case, Gate(twin=case), "deepspeed")
    step.check("DeepSpeed trains correctly", bool(ranks) and not why, why)


def warm(step: Step) -> None:
    """Compare the step time after two seconds and after a minute of load."""
    case = step.case(f"single/{step.model}", precision=Precision.AUTOCAST)
    short = alone.bare_loop(KNOWN, case, 6 if step.dry else 60)
    long = alone.bare_loop(KNOWN, case, 9 if step.dry else max(60, round(60 / short)))
    step.keep("steps", {"after_2_s": short, "after_60_s": long})
    step.on_device("a warm GPU is as fast, within 5 %", abs(long / short - 1) < 0.05, long / short)


def nsys(step: Step) -> None:
    """Check that ``run --nsys`` completes and leaves a report."""
    if shutil.which("nsys") is None:
        return step.check("nsys records a run", None, "not installed")
    words = ["run", "ddp/decoder-nano/weak", "--gpus", "1", "--nsys", "--results", str(step.folder)]
    done = step.scaleproof(*words, "--no-fabric", "--no-timeline")
    reports = [*step.folder.glob("scaleproof-*.nsys-rep"), *step.folder.glob("*.qdstrm")]
    sizes = {path.name: path.stat().st_size for path in reports}
    step.keep("reports", sizes)
    seen = done.stderr[-200:] or sizes
    return step.check("nsys records a run", done.returncode in (0, 5) and bool(reports), seen)


def suite(step: Step) -> None:
    """Run the suite for one GPU as a user would; it judges DDP's wrapper, compilation and MFU."""
    budget = "20s" if step.dry else "270s"
    words = ["-k", "ddp and weak and not paced", "--gpus", "1", "--time-budget", budget]
    words += ["--results", str(step.folder)]
    command = [sys.executable, "-m", "pytest", "suites/", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (step.folder / "pytest.txt").write_text(done.stdout + done.stderr)
    step.on_device(
        "the suite ends with a verdict", done.returncode in (0, 1), f"exit {done.returncode}"
    )
    for record in step.folder.glob("runs/*/*/record.json"):
        for verb in ("verify", "report"):
            output = step.scaleproof(verb, str(record.parent))
            (step.folder / f"{verb}.txt").write_text(output.stdout + output.stderr)
            step.check(f"{verb} succeeds", output.returncode == 0, output.stderr[-200:])


def broken(step: Step) -> None:
    """Check that failures of a device are reported correctly, and that the next world trains."""
    words = {"index": "index out of bounds", "memory": "out of memory"}
    if not step.dry:
        words["hang"] = "silent for"
    soon = Deadlines(step_s=4)
    with step.worlds() as fleet:
        for breaks, word in words.items():
            case = step.case("broken/mlp-nano", knobs={"broken.breaks": breaks})
            _, ranks, why = step.launch(fleet, case, Timed(steps=12, cut=4, draw=1), breaks, soon)
            step.keep(breaks, why)
            step.on_device(f"{breaks} is reported", not ranks and word in why, why[:200])
            healthy = step.case("ddp/mlp-nano")
            name = f"after-{breaks}"
            _, ranks, why = step.launch(fleet, healthy, Timed(steps=12, cut=4, draw=1), name)
            step.check(f"the world after {breaks} trains", bool(ranks) and not why, why)


def strategies(step: Step) -> None:
    """Run the correctness checks of all strategies and compressors that ``gates`` leaves out."""
    rest = [s for s in _shipped("strategies") if s not in STRATEGIES]
    codecs = [c for c in _shipped("compressors") if c not in CODECS]
    _gated(step, SITE, [*map(_named, rest), *map(_coded, codecs)])


def shared(step: Step) -> None:
    """Run correctness checks with two ranks on one GPU, which exchange gradients over gloo."""
    several = [s for s in _shipped("strategies") if s != "single"]
    autocast = [(f"{s}/decoder-nano", Precision.AUTOCAST) for s in STRATEGIES if s != "single"]
    codecs = map(_coded, _shipped("compressors"))
    _gated(step, SHARED, [*map(_named, several), *autocast, *codecs])


def _shipped(kind: str) -> list[str]:
    names = [name for name, entry in KNOWN.entries[kind].items() if entry.shipped]
    apart = ("compressed", "none", "masked_topk")  # the last one is a negative control
    return [name for name in names if name not in apart]


def _named(strategy: str) -> tuple[str, Precision]:
    """Return a case of a strategy and its precision: bf16, if the strategy supports it."""
    model = {"expert_parallel": "moe", "table_parallel": "dlrm"}.get(strategy, "decoder")
    return f"{strategy}/{model}-nano", Precision.FP32 if strategy == "fsdp1" else Precision.BF16


def _coded(codec: str) -> tuple[str, Precision]:
    return f"compressed:{codec}/mlp-nano", Precision.BF16


STEPS = (
    facts,
    first,
    suite,
    kept,
    cache,
    frameworks,
    warm,
    nsys,
    gates,
    truth,
    nccl,
    repeatable,
    memory,
    profile,
    broken,
    strategies,
    shared,
)


if __name__ == "__main__":
    os.environ.setdefault("SCALEPROOF_NO_FABRIC", "1")
    wanted = Step(sys.argv[1], Path(sys.argv[2]), "--dry" in sys.argv)
    next(f for f in STEPS if f.__name__ == wanted.name)(wanted)
    wanted.done()
