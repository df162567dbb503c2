"""Let a training measure itself, in a notebook or if a service starts its ranks.

1. ``begin`` installs the hooks.
2. At the end of the window the hooks are removed. Every rank stores its results in the store of the
   process group.
3. In ``end``, rank 0 collects the results, and another program writes the record.

Nothing here ends a training early. If a measurement fails, a warning is issued.
"""

import datetime
import io
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.base import files, programs
from harness.base.documents import to_doc
from harness.cases import CaseSpec, Device, Mode
from harness.cases.case import BY_ITSELF, SCRIPT
from harness.cases.script import accepted
from harness.host import secrets
from harness.launch.wire import messages
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import LaunchSpec, Recorded, Script
from harness.record import RankRecord
from harness.record.store import write_text
from harness.training.accelerator import Accelerator, numbered
from harness.training.observe import collectives, kernel_counters
from harness.training.rank.joining import Barrier
from harness.training.rank.setup import Rank, RankPlace, StartupTimes
from harness.training.script.evidence import document_of, ended_early
from harness.training.script.prepared import Preparation
from harness.training.script.region import region
from harness.training.script.watch import Watch

region.awaited = True  # code that imports this module will call ``begin``

#: Number of collectives that the flight recorder keeps. Only those of the last step are read.
KEPT = 2000
#: Longest time in s that rank 0 waits for another rank's results, and for the program that writes
#: the record.
LEAVE_S = 60.0
WRITE_S = 120.0
#: Largest number of characters that are written to a store under one key.
PIECE = 1 << 20
_COUNT = itertools.count()


class Recording:
    """A recording of one measured window of this process's training.

    On rank 0, ``run`` is the folder of the record after the recording has ended.
    """

    def __init__(
        self,
        name: str = "",
        *,
        steps: int = 50,
        warm_up: int = 10,
        samples_per_step: int | None = None,
        accept: str = "",
        results: str | Path = "results",
    ) -> None:
        """Create a recording of ``steps`` timed steps after ``warm_up`` ones.

        ``samples_per_step`` is the number of samples that one rank trains on in a step. It is
        needed only if samples cannot be counted. ``accept`` names checks that may fail.
        """
        if steps < 2 or warm_up < 1:
            raise ValueError(
                f"measure_steps(steps={steps}, warm_up={warm_up}): at least 2 steps are timed"
                " after at least 1 warm-up step"
            )
        self.name = "".join(c if c.isalnum() else "_" for c in name or _program())
        self.run: Path | None = None
        self._task = Script(folder=str(Path.cwd()), steps=warm_up + steps, cut=warm_up)
        self._samples = samples_per_step
        self._accepted = accepted(accept)
        self._results = Path(results).resolve()
        self._prepared = Preparation()
        self._watch: Watch | None = None
        self._store: dist.Store | None = None
        self._left = False

    def prepare(self) -> None:
        """Start to record loaders and optimizers that are made before ``begin`` is called."""
        self._prepared.install()

    def begin(self) -> None:
        """Start watching this process.

        If scaleproof started the process, this call only marks the start of the training.
        """
        watched = bool(region.watches)
        region.enter()
        if watched:
            self._prepared.remove()
        if watched or self._watch is not None:
            return
        if not dist.is_initialized():
            collectives.enable(KEPT)
        self._number = next(_COUNT)
        self._left = False
        self._store = _store()
        self._began = time.monotonic()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._out = Path(tempfile.mkdtemp(prefix="scaleproof-"))
        self._watch = Watch(self._task, self._rank(), self._over)
        self._watch.hooks.install(self._prepared)

    def end(self, error: BaseException | None = None) -> None:
        """Stop watching, and write the record on rank 0.

        No record is written if ``error`` ended the training before the end of the window.
        """
        watch = self._watch
        if watch is None:
            self._prepared.remove()
            return
        self._watch = None
        if watch.hooks.looking and watch.measured:
            watch.finish()
        watch.hooks.remove()
        if self._left or error is None:
            self._end(watch)
        shutil.rmtree(self._out, ignore_errors=True)

    def _end(self, watch: Watch) -> None:
        rank, world_size = _place()
        missing: dict[int, str] = {}
        if not self._left:
            missing[rank] = ended_early(watch, watch.rank.spec).what
            self._leave(missing[rank], rank)
        if rank == 0:
            self._write(world_size, missing)

    def _rank(self) -> Rank:
        """Return this process as rank 0. Its actual rank is read at the end of the window."""
        store = dist.HashStore()
        case = self._case([platform.node()])
        place = RankPlace(
            rank=0,
            world_size=1,
            local_rank=0,
            node=0,
            device=0,
            cpus=tuple(sorted(os.sched_getaffinity(0))),
            parent=os.getppid(),
            store=lambda: store,
        )
        spec = LaunchSpec(
            launch=self.name, case=case, out=str(self._out), task=self._task, files={}
        )
        return Rank(
            spec=spec,
            place=place,
            out=self._out,
            accelerator=Accelerator(_device()),
            meet=Barrier(store, 0, 1, communicate=False),
            lap=StartupTimes(),
            tuned_threads=0,
            known_modules=frozenset(sys.modules),
            shared=kernel_counters.shared_memory(),
            beats=Beats(self._out / "beats", 1, create=True),
        )

    def _case(self, hosts: list[str]) -> CaseSpec:
        """Return the case of this training. ``hosts`` lists the host of each rank."""
        on_gpus = _device().type != "cpu"
        backend = dist.get_backend() if dist.is_initialized() else "nccl" if on_gpus else "gloo"
        return CaseSpec(
            strategy=SCRIPT,
            model=self.name,
            size="own",
            mode=Mode.WEAK,
            world_size=len(hosts),
            nodes=tuple(len(list(alike)) for _, alike in itertools.groupby(hosts)),
            device=Device.CUDA if on_gpus else Device.CPU,
            backend=backend,
            script=f"{BY_ITSELF} {self.name}",
            samples_per_step=self._samples,
            accepted=self._accepted,
        )

    def _over(self, watch: Watch) -> None:
        """Remove the hooks at the end of the window, and store the results of this rank."""
        watch.hooks.remove()
        rank, world_size = _place()
        device = next(iter(watch.parameters()), torch.zeros(0)).device.type
        if device != watch.rank.accelerator.device.type:
            self._leave(
                f"the training is on {device}, which was not in use when measure_steps began:"
                " enter measure_steps after the model was moved to its device",
                rank,
            )
            return
        place = replace(watch.rank.place, rank=rank, world_size=world_size)
        document = document_of(watch, replace(watch.rank, place=place), _source(), "library")
        self._leave(document, rank)

    def _leave(self, document: RankRecord | str, rank: int) -> None:
        """Store this rank's record, or the reason why there is none, in the store for rank 0."""
        self._left = True
        (self._out / f"rank{rank}.json").write_text(json.dumps(to_doc(document)), encoding="utf-8")
        self._store = _store() or self._store
        if not rank or self._store is None:
            return  # rank 0 reads its files from its local folder
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as pack:
            for file in self._out.glob(f"rank{rank}.*"):
                pack.write(file, file.name)
        text = packed.getvalue().hex()
        pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(self._key(rank, str(number)), piece)
        self._store.set(self._key(rank, "pieces"), f"{len(pieces)} {platform.node()}")

    def _key(self, rank: int, part: str) -> str:
        return f"scaleproof/{self._number}/{rank}/{part}"

    def _take(self, rank: int) -> str:
        """Fetch the files of another rank, and return the name of its host."""
        if self._store is None:
            raise RuntimeError(
                "there is no process group: does the training call init_process_group?"
            )
        self._store.wait([self._key(rank, "pieces")], timedelta(seconds=LEAVE_S))
        count, host = self._store.get(self._key(rank, "pieces")).decode().split()
        texts = [self._store.get(self._key(rank, str(i))).decode() for i in range(int(count))]
        with zipfile.ZipFile(io.BytesIO(bytes.fromhex("".join(texts)))) as pack:
            for name in (f"rank{rank}.json", f"rank{rank}.npz"):
                if name in pack.namelist():
                    (self._out / name).write_bytes(pack.read(name))
        return host

    def _write(self, world_size: int, missing: dict[int, str]) -> None:
        """Collect the files of all ranks, and start the program that writes the record."""
        hosts = [platform.node()]
        for rank in range(1, world_size):
            try:
                hosts.append(self._take(rank))
            except RuntimeError as error:  # the rank stored nothing, or the store has ended
                waited = isinstance(error, dist.DistError)
                missing[rank] = (
                    f"stored no results within {LEAVE_S:.0f} s" if waited else str(error)
                )
                hosts.append(hosts[-1])
        document = Recorded(
            case=self._case(hosts),
            steps=self._task.steps,
            cut=self._task.cut,
            started_at=self._started_at,
            lasted_s=time.monotonic() - self._began,
            results=str(self._results),
            argv=_typed(),
            missing={str(rank): why for rank, why in missing.items()},
        )
        write_text(self._out / messages.FILE, json.dumps(to_doc(document)))
        env = {**os.environ, "PYTHONPATH": _with_ours(os.environ.get("PYTHONPATH", ""))}
        words = [sys.executable, *programs.MODULE, programs.RECORDER, str(self._out)]
        try:
            done = subprocess.run(
                words,
                env=env,
                capture_output=True,
                text=True,
                timeout=WRITE_S,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            _warn(f"no record was written: {error}")
            return
        if done.returncode:
            _warn(f"no record was written: {done.stderr.strip()[-2000:]}")
            return
        for line in done.stderr.splitlines():
            _warn(line)
        self.run = Path(done.stdout.strip().splitlines()[-1])


@contextmanager
def measure_steps(
    name: str = "",
    *,
    steps: int = 50,
    warm_up: int = 10,
    samples_per_step: int | None = None,
    accept: str = "",
    results: str | Path = "results",
) -> Iterator[Recording]:
    """Measure ``steps`` steps of the training inside this block, after ``warm_up`` warm-up steps.

    All ranks must enter the block before their first step. The hooks are removed at the end of the
    window. At the end of the block, ``run`` on rank 0 is the folder of the record, which
    ``report``, ``verify`` and ``compare`` accept. The result is RECORDED. There is no verdict on
    scaling, because there is no smaller world for a comparison.

    Args:
        name: the name of the training. Records with the same name can be compared. The default is
            the name of the file.
        steps: number of timed steps.
        warm_up: number of steps before the timed ones.
        samples_per_step: number of samples that one rank trains on in a step. It is needed only if
            samples cannot be counted.
        accept: checks that may fail because the failure is intended, such as ``replicas,idle``.
        results: the folder in which runs are stored.

    Raises:
        ValueError: if there are fewer than 2 steps, or no warm-up step.
        SpecError: if ``accept`` names an unknown check.
    """
    recording = Recording(
        name,
        steps=steps,
        warm_up=warm_up,
        samples_per_step=samples_per_step,
        accept=accept,
        results=results,
    )
    recording.begin()
    try:
        yield recording
    except BaseException as error:
        recording.end(error)
        raise
    recording.end()


def _place() -> tuple[int, int]:
    """Return this process's rank and the world size, from the process group or the launcher."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _store() -> dist.Store | None:
    """Return the store of the default process group, or None for a single rank."""
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return dist.distributed_c10d._get_default_store()


def _device() -> torch.device:
    """Return the accelerator if this process has initialised it, else the CPU."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.get_device_module(kind).is_initialized():
        return torch.device("cpu")
    return numbered(torch.accelerator.current_device_index())


def _main_file() -> Path | None:
    """Return the file of this program, or None in a notebook."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _program() -> str:
    file = _main_file()
    return file.stem if file is not None else "notebook"


def _typed() -> tuple[str, ...]:
    """Return the command that started this process, or an empty tuple in a notebook."""
    if _main_file() is None:
        return ()
    return tuple(secrets.masked_words(["python", *sys.orig_argv[1:]]))


def _source() -> str:
    """Return the first 16 hex digits of the SHA-256 of the program's file, or "" in a notebook."""
    file = _main_file()
    return files.digest_of_file(file) if file is not None else ""


def _with_ours(path: str) -> str:
    """Add the folder of this package to the end of a module search path."""
    return os.pathsep.join(part for part in (path, str(programs.ROOT)) if part)


def _warn(text: str) -> None:
    """Warn that a measurement has failed. The training continues."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)
