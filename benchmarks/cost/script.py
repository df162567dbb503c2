"""Measure what observing a user's training costs: the same loop with and without hooks, in turn.

Each measurement is a separate process, because hooks cannot be removed. There are three loops: a
GPT like nanoGPT, with many small modules; a tutorial with one linear layer and a loader, whose
steps are so short that the cost of hooks is largest; and the GPT with few tokens. The output is the
CPU time of a step, which background load hardly lengthens, and the mean difference with its 95 %
interval over the pairs. Further processes measure the time in hooks by a clock around each hook;
they are separate because the clock costs as much as a hook. On a GPU the wall time between the ends
of steps is measured, because the host busily waits there and its CPU time has no meaning.

If a step is long, processes differ by more than the hooks cost. ``--within`` compares steps in one
process instead: every few steps, the attributes of torch that hold hooks are replaced by the
original ones, or back. The first step after each change is left out, because the interpreter's
caches are invalid then. The output is the median difference of successive turns, with its 95 %
interval from order statistics. The loop with few tokens has short steps that read the same weights.
Hooks find the CPU's caches as full as in long steps, but the interval is narrower.

    python benchmarks/cost/script.py [--pairs 40] [--steps 200] [--loop gpt|few|tutorial] [--gpu]
    python benchmarks/cost/script.py --within [--steps 4000] [--loop gpt|few|tutorial]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, optimizer as optimizers
from torch.utils.data.dataloader import _BaseDataLoaderIter

from harness.base.stats import t_interval
from harness.cases import CaseSpec, Device, Mode
from harness.cases.script import parse
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import LaunchSpec, Script
from harness.training.rank.setup import RankPlace
from harness.training.script.evidence import begin, rank_of
from harness.training.script.hooks import Hooks
from harness.training.script.observed import Observed

FOREVER = 10**6
#: Warm-up steps that are not counted, in which the hooks inspect parameters and find the models.
WARM = 10
#: Steps in one turn, with hooks or without.
TURN = 8
#: Number of processes with a clock around each hook.
TIMED = 5


def main() -> None:
    """Measure every loop, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--loop", choices=tuple(LOOPS), action="append")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--within", action="store_true")
    parsed = parser.parse_args()
    loops = parsed.loop or list(LOOPS)
    for name in loops:
        if parsed.within:
            within(name, parsed.steps)
            continue
        compared(name, parsed.pairs, parsed.steps, "cuda" if parsed.gpu else "cpu")


def compared(name: str, pairs: int, steps: int, device: str) -> None:
    """Print the cost of hooks per step of one loop, from pairs of processes."""
    step_s: dict[str, list[float]] = {"watched": [], "bare": []}
    for pair in range(pairs):
        for way in ("watched", "bare") if pair % 2 else ("bare", "watched"):
            step_s[way].append(child(name, way, steps, device)[0])
    in_hooks_s = [child(name, "timed", steps, device)[1] for _ in range(TIMED)]
    more = [1e3 * (w - b) for w, b in zip(step_s["watched"], step_s["bare"], strict=True)]
    bare_ms = 1e3 * median(step_s["bare"])
    interval = t_interval(more, 0.05)
    low, high = interval.low, interval.high
    assert low is not None and high is not None
    print(
        f"{name:9} {bare_ms:.2f} ms{' of CPU' * (device == 'cpu')} a step;"
        f" watching costs {interval.mean:+.3f} ms"
        f" [{low:+.3f}, {high:+.3f}], {interval.mean / bare_ms:+.1%}"
        f" [{low / bare_ms:+.1%}, {high / bare_ms:+.1%}], {pairs} pairs;"
        f" in hooks {1e3 * median(in_hooks_s):.3f} ms",
        flush=True,
    )


def within(name: str, steps: int) -> None:
    """Print the cost of hooks per step of one loop, from turns in one process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    places = Places()
    watch()
    step_s: dict[bool, list[float]] = {True: [], False: []}
    loop = LOOPS[name]()
    for _ in range(WARM):
        next(loop)
    places.look()
    for turn in range(steps // TURN):
        watched = (turn // 2 + turn) % 2 == 0  # on, off, off, on: neither always comes first
        places.put(watched)
        next(loop)
        began_s = time.process_time()
        for _ in range(TURN - 1):
            next(loop)
        step_s[watched].append((time.process_time() - began_s) / (TURN - 1))
    pairs = list(zip(step_s[True], step_s[False], strict=False))
    more_ms = sorted(1e3 * (with_ - without) for with_, without in pairs)
    off = round(0.98 * math.sqrt(len(more_ms)))  # ranks of a median's 95 % interval
    middle = len(more_ms) // 2
    print(
        f"{name:9} {1e3 * median(step_s[False]):.2f} ms of CPU a step; watching costs"
        f" {median(more_ms):+.3f} ms [{more_ms[middle - off]:+.3f}, {more_ms[middle + off]:+.3f}],"
        f" {len(more_ms)} pairs of {TURN - 1} steps",
        flush=True,
    )


class Places:
    """The attributes of torch that hooks replace, with their values with and without hooks."""

    def __init__(self) -> None:
        self._kinds: list[Any] = [
            torch, torch.random, torch.autograd, Tensor, nn.Module, nn.Sequential, nn.Linear,
            Optimizer, _BaseDataLoaderIter,
        ]  # fmt: skip
        self._lists: list[Any] = [
            optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks,
        ]
        self._before = self._now()
        self._watched = self._before

    def look(self) -> None:
        """Remember the current values of the attributes as the values with hooks."""
        self._watched = self._now()
        differing = zip(self._before[0], self._watched[0], strict=True)
        self._names = [[n for n in now if now[n] is not was.get(n)] for was, now in differing]

    def put(self, watched: bool) -> None:
        """Set the values with hooks, or the original values."""
        kinds, lists = self._watched if watched else self._before
        for kind, there, names in zip(self._kinds, kinds, self._names, strict=True):
            for name in names:
                if name in there:
                    setattr(kind, name, there[name])
                elif name in vars(kind):
                    delattr(kind, name)
        for hooks, there in zip(self._lists, lists, strict=True):
            hooks.clear()
            hooks.update(there)

    def _now(self) -> tuple[list[dict[str, Any]], list[dict[Any, Any]]]:
        return [dict(vars(kind)) for kind in self._kinds], [dict(hooks) for hooks in self._lists]


def child(name: str, way: str, steps: int, device: str) -> tuple[float, float]:
    """Return the mean step time of a loop in a separate process, and its time in hooks, in s."""
    fork = multiprocessing.get_context("fork")  # so torch is imported only once
    with fork.Pool(1) as pool:
        return pool.apply(in_child, (name, way, steps, device))


def in_child(name: str, way: str, steps: int, device: str) -> tuple[float, float]:
    if way == "timed":
        time_hooks()
    torch.set_default_device(device)
    step_s = stepped(LOOPS[name], way != "bare", steps)
    return step_s, SPENT.total_s / (steps - WARM)


class Spent:
    """The total time (s) in functions; time in nested calls is counted once."""

    total_s = 0.0
    inside = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            if self.inside:
                return function(*args, **more)
            self.inside, began = True, time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                self.inside, self.total_s = False, self.total_s + time.perf_counter() - began

        return timed


SPENT = Spent()


def stepped(loop: Callable[[], Iterator[None]], watched: bool, steps: int) -> float:
    """Return the mean CPU time (s) of a step on one core, or its wall time on a GPU."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if watched:
        watch()
    began_s = 0.0
    for step, _ in enumerate(itertools.islice(loop(), steps)):
        if step == WARM - 1:
            SPENT.total_s = 0.0
            began_s = now_s()
    return (now_s() - began_s) / (steps - WARM)


def now_s() -> float:
    """Return the CPU time (s) of the process, or on a GPU the wall time after its work is done."""
    if torch.get_default_device().type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    """A transformer block as in nanoGPT: attention and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, time_, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


def gpt(rows: int = 12, length: int = 64) -> Iterator[None]:
    """Train nanoGPT at its size for CPUs: 4 layers, 4 heads, width 128, 12 rows of 64 tokens."""
    blocks = [Block(128, 4) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(65, 128), *blocks, nn.LayerNorm(128), nn.Linear(128, 65))
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        tokens = torch.randint(65, (rows, length + 1))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        yield


def tutorial() -> Iterator[None]:
    """Train as in PyTorch's first tutorial: one linear layer, SGD, batches of 32 of 2,048 rows."""
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
    drawn = torch.Generator(torch.get_default_device())
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=drawn)
    while True:
        for rows, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows), targets).backward()
            optimizer.step()
            yield


DEVICES = {"cpu": Device.CPU, "cuda": Device.CUDA}
LOOPS: dict[str, Callable[[], Iterator[None]]] = {
    "gpt": gpt,
    "few": functools.partial(gpt, rows=1, length=16),
    "tutorial": tutorial,
}


def time_hooks() -> None:
    """Put a clock around every hook."""
    for name in ("_enter", "_leave", "_stepping", "_stepped", "_passing"):
        setattr(Hooks, name, SPENT.around(getattr(Hooks, name)))
    for name in ("enter_backward", "leave_backward"):
        setattr(Observed, name, SPENT.around(getattr(Observed, name)))


def watch() -> None:
    """Observe this process like the rank of a script, with a window that never ends."""
    folder = Path(tempfile.mkdtemp())
    case = CaseSpec(
        strategy="script", model="loop", size="own", mode=Mode.WEAK, world_size=1, nodes=(1,),
        device=DEVICES[torch.get_default_device().type], backend="gloo", script="loop.py",
    )  # fmt: skip
    task = Script(folder=str(folder), steps=FOREVER, cut=4)
    spec = LaunchSpec(launch="cost", case=case, out=str(folder), task=task, files={})
    place = RankPlace(
        rank=0, world_size=1, local_rank=0, node=0, device=0, cpus=(0,), parent=0,
        store=lambda: torch.distributed.HashStore(),
    )  # fmt: skip

    def leave() -> NoReturn:
        raise SystemExit(0)

    beats = Beats(folder / "beats", 1, create=True)
    begin(rank_of(spec, place, beats, place.store()), parse(["loop.py"]), "forked", leave)


if __name__ == "__main__":
    main()
