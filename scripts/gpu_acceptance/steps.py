"""The steps: ``python steps.py NAME FOLDER [--dry]`` leaves FOLDER/checks.json."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import alone
import numpy as np
import torch

from harness.analysis.timeline.profiled import budget_of
from harness.base.documents import from_doc, to_doc
from harness.host import nvml
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import Gate, LaunchSpec, Task, Timed
from harness.record import Described, RankRecord, Term
from harness.spec import CaseSpec, Catalogue, Device, Precision, Site

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KNOWN = Catalogue([HERE / "planted"])
CODECS = [c for c, e in KNOWN.entries["compressors"].items() if not e.head.get("CONTROL")]


class Step:
    """What a step finds: checks that hold, do not hold (False), or could not be made (None)."""

    def __init__(self, folder: Path, dry: bool) -> None:
        self.folder, self.dry = folder, dry
        self.device = Device.CPU if dry else Device.CUDA
        self.checks: list[dict[str, Any]] = []

    def check(self, what: str, ok: bool | None, seen: object = "") -> None:
        self.checks.append({"what": what, "ok": ok, "seen": str(seen)})
        print("not checked" if ok is None else "ok" if ok else "BAD", what, seen, flush=True)
        (self.folder / "checks.json").write_text(json.dumps(self.checks, indent=1))

    def keep(self, name: str, document: object) -> None:
        """Evidence."""
        (self.folder / f"{name}.json").write_text(json.dumps(document, indent=1, default=str))

    def on_device(self, what: str, ok: bool, seen: object = "") -> None:
        """A check that only a device can fail: timings, its memory."""
        self.check(what, None if self.dry else ok, seen)

    def scaleproof(
        self, *words: str, where: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=where or ROOT
        )

    def site(self, ranks: int, shared: bool = False) -> Site:
        backend = "gloo" if shared or self.dry else "nccl"
        return Site(
            device=self.device, backend=backend, nodes=(ranks,),
            shared_gpu=shared and not self.dry,
        )  # fmt: skip

    @contextlib.contextmanager
    def worlds(self, ranks: int, shared: bool = False) -> Iterator[Fleet]:
        shared = shared and not self.dry
        where = Where(nodes=(ranks,), device=self.device, shared_gpu=shared)
        fleet = open_worlds(KNOWN.get("engines", "local"), where)
        try:
            yield fleet
        finally:
            fleet.close()

    @functools.cached_property
    def models(self) -> tuple[str, ...]:
        """Those whose figures count; on CPU ones that fit."""
        return ("decoder-nano",) if self.dry else ("decoder-350m", "decoder-175m", "decoder-nano")


def launch(
    fleet: Fleet, case: CaseSpec, task: Task, out: Path
) -> tuple[Described, list[RankRecord], Any]:
    """A world's description, its ranks' records, and why it ended if not well."""
    files = KNOWN.files(case)
    described = fleet.describe([(case, files)])[0]
    if described.error:
        raise SystemExit(f"{case.id}: {described.error}")
    if described.unsupported:
        return described, [], None
    spec = LaunchSpec(launch=out.name, case=case, out=str(out), files=files, task=task)
    ended = fleet.launch(spec, lambda step: None)
    paths = sorted(out.glob("rank?.json"))
    ranks = [from_doc(RankRecord, json.loads(path.read_text())) for path in paths]
    return described, ranks, causes.attribute(ended.ranks, ended.unreachable)


def facts(step: Step) -> None:
    smi = subprocess.run("nvidia-smi -q", shell=True, capture_output=True, text=True, check=False)
    (step.folder / "nvidia-smi.txt").write_text(smi.stdout + smi.stderr)
    doctor = step.scaleproof("doctor", "--json")
    (step.folder / "doctor.json").write_text(doctor.stdout)
    step.check("doctor answers", doctor.returncode in (0, 10), f"exit {doctor.returncode}")
    devices = nvml.gpus()
    step.keep("gpus", [to_doc(g) for g in devices])
    polls, times = [], []
    for _ in range(10):
        began = time.perf_counter()
        polls.append(nvml.poll())
        times.append(time.perf_counter() - began)
    step.keep("polls", polls)
    step.keep("versions", {
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "nccl": torch.cuda.nccl.version() if not step.dry else None, "poll_s": times,
    })  # fmt: skip
    seen = torch.cuda.device_count() if not step.dry else 0
    step.on_device(
        "torch and NVML see the same devices", seen == len(devices), f"{seen}, {len(devices)}"
    )
    step.on_device("a poll takes at most 0.1 s", median(times) < 0.1, f"{median(times):.3f} s")


def gates(step: Step) -> None:
    """Alone over NCCL, then sharing the device over gloo: the margin of every check is evidence."""
    margins: dict[str, float] = {}
    strategies = ("single", "ddp", "fsdp", "pipeline", *(f"compressed:{c}" for c in CODECS))
    for ranks in (1, 2) if step.dry else (1, 2, 4):
        with step.worlds(ranks, shared=ranks > 1) as fleet:
            for strategy in strategies[: 4 if step.dry else None]:
                if (strategy == "single") != (ranks == 1) and strategy == "single":
                    continue
                for precision in (Precision.FP32,) if step.dry else tuple(Precision):
                    site = step.site(ranks, shared=ranks > 1)
                    case = KNOWN.normalise(site.case(f"{strategy}/mlp-nano", precision=precision))
                    _gate(step, fleet, case, margins)
    step.keep("margins", dict(sorted(margins.items(), key=lambda m: -m[1])))
    worst = max(margins.values(), default=0.0)
    step.on_device("errors stay below 0.3 of their limits", worst < 0.3, f"{worst:.2f}")


def _gate(step: Step, fleet: Fleet, case: CaseSpec, margins: dict[str, float]) -> None:
    out = step.folder / "launches" / f"{len(list(step.folder.glob('launches/*')))}"
    described, ranks, cause = launch(fleet, case, Gate(twin=KNOWN.twin(case)), out)
    name = f"{case.id} {case.precision}"
    if described.unsupported:
        step.check(f"{name} is refused in one sentence", "\n" not in described.unsupported)
        return
    failed = [c for r in ranks for c in r.checks if not c.ok]
    told = "" if cause is None else cause.message
    step.check(name, bool(ranks) and cause is None and not failed, told or failed[:3])
    for c in (c for r in ranks for c in r.checks):
        if c.limit and c.value is not None:
            key = f"{name} {c.name}"
            margins[key] = max(margins.get(key, 0.0), c.value / c.limit)


def truth(step: Step) -> None:
    """The harness's step time is the device's: against a loop that does nothing else."""
    for model in step.models:
        case = KNOWN.normalise(step.site(1).case(f"single/{model}"))
        steps = 12 if step.dry else 60
        bare = alone.bare_loop(KNOWN, case, steps)
        ours = []
        with step.worlds(1) as fleet:
            for k in range(3):
                out = step.folder / "launches" / f"{model}-{k}"
                _, ranks, cause = launch(
                    fleet, case, Timed(steps=steps, cut=steps // 3, draw=1), out
                )
                step.check(
                    f"{model} launch {k} ends well", cause is None and len(ranks) == 1, cause
                )
                with np.load(out / "rank0.npz") as samples:
                    ours.append(median(samples["step_s"][steps // 3 :].tolist()))
        limit = 0.03 if model.endswith("nano") else 0.005
        off = median(ours) / bare - 1
        step.keep(model, {"bare_s": bare, "launches_s": ours})
        step.on_device(
            f"{model}: within {limit:.1%} of a bare loop", abs(off) < limit, f"{off:+.2%}"
        )
    with nvml.Watch(1.0, links=False) as watch:
        alone.busy(step.device, 1 if step.dry else 60)
    step.keep("minute", watch.polls)
    step.on_device(
        "clocks were read over a minute", len(watch.polls) > 50, f"{len(watch.polls)} polls"
    )


def memory(step: Step) -> None:
    cases = [("single", m, p, c) for m in step.models for p in Precision for c in (False, True)]
    for strategy, model, precision, checkpoint in cases[: 1 if step.dry else None]:
        fields = {"precision": precision, "checkpoint": checkpoint}
        case = KNOWN.normalise(step.site(1).case(f"{strategy}/{model}", **fields))
        out = step.folder / "launches" / re.sub(r"\W+", "-", case.id)
        with step.worlds(1) as fleet:
            described, ranks, cause = launch(fleet, case, Timed(steps=4, cut=2, draw=1), out)
        if cause is not None and cause.kind == "memory":
            step.check(
                f"{case.id} does not fit, and that is what is said", True, cause.message[:80]
            )
            continue
        assert described.expected is not None
        stated, peak = described.expected.memory_bytes, ranks[0].peak_bytes or 0
        share = peak / stated if stated else 0.0
        step.on_device(
            f"{case.id}: peak within 15 % of the closed form", abs(share - 1) < 0.15, f"{share:.2f}"
        )


def timeline(step: Step) -> None:
    """What is planted must be found, in the term where it belongs."""
    steps, plain = 24, {}
    model = step.models[0]
    plants = {"none": {}, "sleep": {"late.sleep_ms": 60.0}, "kernel": {"late.products": 20}}
    with step.worlds(1) as fleet:
        for name, knobs in plants.items():
            case = KNOWN.normalise(step.site(1).case(f"late/{model}", knobs=knobs))
            out = step.folder / "launches" / name
            task = Timed(steps=steps, cut=4, profiled=8, draw=1)
            _, ranks, cause = launch(fleet, case, task, out)
            step.check(f"profiled launch {name} ends well", cause is None, cause)
            began = time.perf_counter()
            budget = budget_of(step.folder, name, ranks, 8, talks=False)
            print(name, f"read in {time.perf_counter() - began:.1f} s", budget.operators[:3])
            step.check(f"{name}: the budget closes, of a {budget.device}",
                       budget.device == ("cpu" if step.dry else "cuda"), budget.unsure)  # fmt: skip
            plain[name] = {t: budget.mean_ns(t) / 1e6 for t in Term}
            size = (out / "rank0.trace.json.gz").stat().st_size
            step.check(f"{name}: its trace is under 4 MB, to be kept", size < 4e6 or None, size)
            if not step.dry:
                memory = out / "rank0.memory.pickle"
                step.check(f"{name}: the allocator's history is there", memory.is_file())
    step.keep("terms_ms", plain)
    slept = plain["sleep"][Term.IDLE] - plain["none"][Term.IDLE]
    step.check(
        "60 ms of sleep are idleness", abs(slept - 60) < (15 if step.dry else 2), f"{slept:.1f} ms"
    )
    more = plain["kernel"][Term.COMPUTE] - plain["none"][Term.COMPUTE]
    step.check("a planted kernel is compute", more > 0, f"{more:+.2f} ms")


def faults(step: Step) -> None:
    kinds = ["kill", "raise"] if step.dry else ["kill", "raise", "device_oom", "hang", "exit"]
    strategies = ["ddp"] if step.dry else ["ddp", "fsdp"]
    command = [
        sys.executable,
        "-m",
        "tests.faults.matrix",
        "--repeats",
        "1",
        "--hangs",
        "1",
        "--jobs",
        "1",
    ]
    command += [
        "--kinds",
        *kinds,
        "--strategies",
        *strategies,
        *([] if step.dry else ["--shared-gpu"]),
    ]
    before = _used()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (step.folder / "matrix.md").write_text(done.stdout + done.stderr)
    step.check("the right rank, in time, nothing left", done.returncode == 0, done.stdout[-300:])
    left = [p.name for p in Path("/dev/shm").glob("nccl-*")]
    step.on_device("no shared memory of NCCL is left", not left, left)
    time.sleep(2)  # what the driver is allowed
    step.on_device(
        "the device's memory is idle again", _used() <= before + (64 << 20), _used() - before
    )


def _used() -> int:
    return sum(g.used_bytes or 0 for g in nvml.gpus())


def suite(step: Step) -> None:
    """As a user would, on one GPU: it must not be green, since nothing scales on one."""
    where = ["--cpus", "2", "-k", "instrument"] if step.dry else ["--gpus", "1"]
    limits = ["--time-budget", "10s" if step.dry else "5m", "--results", str(step.folder)]
    command = [sys.executable, "-m", "pytest", "suites/", *where, *limits]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (step.folder / "pytest.txt").write_text(done.stdout + done.stderr)
    allowed = (0, 5, 10) if step.dry else (5, 10)
    step.check("its exit status is honest", done.returncode in allowed, f"exit {done.returncode}")
    (record,) = step.folder.glob("runs/*/*/record.json")
    for verb in ("verify", "report"):
        told = step.scaleproof(verb, str(record.parent))
        (step.folder / f"{verb}.txt").write_text(told.stdout + told.stderr)
        step.check(f"{verb} reads it", told.returncode == 0, told.stderr[-200:])


def fork(step: Step) -> None:
    before = _used()
    found = alone.forks(step.device, count=4 if step.dry else 20)
    step.keep("children", found)
    step.check(
        "importing the agent starts neither thread nor driver", found["clean"], found["threads"]
    )
    step.check("every child computed", all(c["code"] == 0 for c in found["children"]))
    time.sleep(1)
    step.on_device(
        "the device's memory is idle again", _used() <= before + (64 << 20), _used() - before
    )
    took = [c["s"] for c in found["children"]]
    step.on_device(
        "a child takes at most 3 s", max(took) < 3, f"{min(took):.2f} to {max(took):.2f} s"
    )


def recorder(step: Step) -> None:
    entries = alone.recorded("gloo" if step.dry else "nccl", step.device)
    step.keep("entries", entries)
    names = {str(e["profiling_name"]) for e in entries}
    step.check("collectives are recorded", len(names) >= 3, sorted(names))


STEPS = (facts, fork, gates, recorder, truth, memory, timeline, faults, suite)


if __name__ == "__main__":
    os.environ.setdefault("SCALEPROOF_NO_FABRIC", "1")
    wanted, place = sys.argv[1], Path(sys.argv[2])
    next(f for f in STEPS if f.__name__ == wanted)(Step(place, "--dry" in sys.argv))
