"""Compare this project's compressors with published ones: speed, bytes and correctness.

The others are torch's hooks and, if their checkouts are given, GRACE (github.com/sands-lab/grace)
and PowerSGD by its authors (github.com/epfml/powersgd). All take turns, call by call, on the same
new gradients, with one rank and one thread, so only their computation is measured. Then two ranks
check the properties that each method claims, with the same checks for all implementations.

    python benchmarks/cost/references.py [--grace FOLDER] [--powersgd FOLDER] [--only topk,fp16]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rivals import Entrant, Row, entry, rows
from torch import Tensor

#: Columns of the gradient, which is one matrix.
WIDTH = 1024
#: Shape of a gradient in the checks. Its size is no multiple of any block size.
CHECKED = (129, 67)
#: Numbers of untimed and of timed calls. After the untimed calls, error feedback and warm starts
#: are in use. The fastest timed call counts, because other processes may use the machine.
WARM, CALLS = 6, 9
#: Number of draws in the check of unbiased methods, and number of steps in the check that the sent
#: gradients and the error feedback sum to the gradients.
DRAWS, STEPS = 100, 8
#: Limits of the checks: bytes relative to the promised ones, because of padding and scales;
#: relative error of sums in fp32; error of a mean in units of its standard error.
ROOM, ROUNDING, SURE = 1.25, 1e-3, 1.5


@contextmanager
def without_gpu() -> Iterator[list[str]]:
    """Make ``Tensor.cuda`` do nothing, for code that needs a GPU; yield a list of the calls."""
    called: list[str] = []
    before = torch.Tensor.cuda

    def cuda(self: Tensor, *_: Any, **__: Any) -> Tensor:
        called.append("cuda")
        return self

    torch.Tensor.cuda = cuda  # type: ignore[assignment,method-assign]
    try:
        yield called
    finally:
        torch.Tensor.cuda = before  # type: ignore[method-assign]


@contextmanager
def sent_bytes() -> Iterator[list[float]]:
    """Yield a list of the bytes that this rank sends in each collective, by the best algorithms."""
    world = dist.get_world_size()
    values_listed: list[float] = []
    shares = {
        "all_reduce": (0, 2 * (world - 1) / world),
        "all_gather": (1, world - 1.0),
        "all_gather_single": (1, world - 1.0),
        "all_gather_into_tensor": (1, world - 1.0),
        "all_to_all": (1, (world - 1) / world),
        "all_to_all_single": (1, (world - 1) / world),
    }
    before = {name: getattr(dist, name) for name in shares if hasattr(dist, name)}

    def counted(name: str) -> Callable[..., Any]:
        place, share = shares[name]

        def call(*given: Any, **named: Any) -> Any:
            parts = given[place] if isinstance(given[place], list) else [given[place]]
            values_listed.append(share * sum(p.numel() * p.element_size() for p in parts))
            return before[name](*given, **named)

        return call

    for name in before:
        setattr(dist, name, counted(name))
    try:
        yield values_listed
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def seconds(rivals: Sequence[Row], elements: int) -> list[float | None]:
    """Return the duration (s) of the fastest call of each implementation; None if it does not run.

    The implementations take turns.
    """
    shape = (elements // WIDTH, WIDTH)
    entrants: list[Entrant | None] = []
    for row in rivals:
        try:
            entrants.append(row.make(shape, False))
        except Exception:  # the checks report it
            entrants.append(None)
    took_s: list[list[float]] = [[] for _ in rivals]
    for call in range(WARM + CALLS):
        gradient = torch.randn(elements)
        for i, entrant in enumerate(entrants):
            if entrant is None:
                continue
            try:
                entrant.load(gradient)
                began = time.perf_counter()
                entrant.step()
                took = time.perf_counter() - began
            except Exception:  # the checks report it
                entrants[i] = None
                continue
            if call >= WARM:
                took_s[i].append(took)
    return [min(f) if f and e is not None else None for f, e in zip(took_s, entrants, strict=True)]


def drawn(step: int, size: int, *, alike: bool = False) -> Tensor:
    """Return a random gradient, which differs by rank unless ``alike`` is set."""
    seed = step * 1009 + (0 if alike else 1 + dist.get_rank())
    return 3.0 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def mean(gradient: Tensor) -> Tensor:
    """Return the mean over ranks in double precision."""
    total = gradient.double()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def given(entrant: Entrant, gradient: Tensor) -> Tensor:
    """Return the result of one step with this gradient."""
    entrant.load(gradient)
    return entrant.step().clone()


def bytes_an_element(row: Row) -> tuple[float, float]:
    """Return the sent bytes per element of a normal gradient, and of a small negative one."""
    shape = (1024, WIDTH)
    size = shape[0] * shape[1]
    entrant = row.make(shape, False)
    for _ in range(WARM):
        with sent_bytes() as sent:
            given(entrant, torch.randn(size))
    with sent_bytes() as of_negative:
        given(row.make(shape, False), -0.01 * torch.rand(size))
    # PowerSGD of torch sends its first gradients uncompressed, which its documentation states.
    negative = sum(of_negative) if row.method != "powersgd" else 0.0
    return sum(sent) / size, negative / size


def promised(method: str) -> float:
    """Return the sent bytes per element that this project states for a method on two ranks."""
    module, knobs = entry(method)
    shape = torch.Size((1024, WIDTH))
    sent: float = module.promise([shape], dist.get_world_size(), knobs).sent_bytes
    return sent / shape.numel()


def adds_up(row: Row) -> bool:
    """Return whether the sent gradients plus the error feedback equal the sum of the gradients.

    Return True for methods without error feedback.
    """
    size = CHECKED[0] * CHECKED[1]
    entrant = row.make(CHECKED, True)
    wanted = sent = torch.zeros(size, dtype=torch.float64)
    for step in range(STEPS):
        gradient = drawn(step, size)
        wanted = wanted + mean(gradient)
        sent = sent + given(entrant, gradient)
    owed = entrant.owed()
    if owed is None:
        return True
    return float((sent + mean(owed) - wanted).norm() / wanted.norm()) < ROUNDING


def nearer(row: Row) -> bool:
    """Return whether the result is nearer to the gradient than zero is."""
    size = CHECKED[0] * CHECKED[1]
    entrant = row.make(CHECKED, True)
    for _ in range(3 if row.by == "torch" and row.method == "powersgd" else 1):
        gradient = drawn(0, size, alike=True)
        # PowerSGD of torch is uncompressed at first; later steps include the error feedback.
        made = given(entrant, gradient)
    return bool((made - gradient).norm() < gradient.norm())


def unbiased(row: Row) -> bool:
    """Return whether the mean of many draws is the gradient.

    A few elements of this gradient are much larger than the others.
    """
    size = CHECKED[0] * CHECKED[1]
    entrant, gradient = row.make(CHECKED, True), drawn(0, size, alike=True)
    gradient = gradient.square() * gradient
    total, squares = torch.zeros(size, dtype=torch.float64), 0.0
    for _ in range(DRAWS):
        made = given(entrant, gradient).double()
        total += made
        squares += float((made - gradient).square().sum())
    limit: float = SURE * (squares / DRAWS / DRAWS) ** 0.5
    return float((total / DRAWS - gradient).norm()) <= limit


def descends(row: Row) -> bool:
    """Return whether the result has a positive inner product with the gradient."""
    gradient = drawn(0, CHECKED[0] * CHECKED[1], alike=True)
    made = given(row.make(CHECKED, True), gradient)
    return float((made * gradient).sum()) > 0


def finite(row: Row, value: float) -> bool:
    """Return whether three steps with a constant gradient give finite results."""
    entrant = row.make(CHECKED, True)
    gradient = torch.full((CHECKED[0] * CHECKED[1],), value)
    return all(bool(given(entrant, gradient).isfinite().all()) for _ in range(3))


def everywhere(message: str) -> list[str]:
    """Return the messages of all ranks."""
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, message)
    return out


def alike(row: Row) -> bool:
    """Return whether all ranks get identical bits."""
    entrant, digest = row.make(CHECKED, False), hashlib.sha256()
    for step in range(4):
        made = given(entrant, drawn(step, CHECKED[0] * CHECKED[1]))
        digest.update(made.contiguous().numpy().tobytes())
    return len(set(everywhere(digest.hexdigest()))) == 1


def seeds(row: Row) -> bool:
    """Return whether a step sets torch's random generator, which makes dropout equal on ranks."""
    torch.manual_seed(1 + dist.get_rank())
    given(row.make(CHECKED, False), drawn(0, CHECKED[0] * CHECKED[1]))
    state = torch.get_rng_state().numpy().tobytes()
    return len(set(everywhere(hashlib.sha256(state).hexdigest()))) == 1


CLAIMS: dict[str, tuple[Callable[[Row], bool], str]] = {
    "contracts": (nearer, "farther off than zero"),
    "unbiased": (unbiased, "biased"),
    "descends": (descends, "is no descent direction"),
}


def faults(row: Row) -> tuple[float | None, list[str]]:
    """Return the sent bytes per element, and a list of failed checks.

    All ranks must call this function, because it uses collectives.
    """
    out: list[str] = []
    with without_gpu() as called:
        try:
            sent, of_negative = bytes_an_element(row)
        except Exception as error:  # raised by code of other projects, on all ranks
            return None, [f"does not run here ({type(error).__name__})"]
    if called:
        out.append("requires a GPU")
    times = sent / promised(row.method)
    if times > ROOM:
        out.append(f"{times:.1f}x the bytes")
    if of_negative > ROOM * max(sent, promised(row.method)):
        out.append(f"{of_negative:.1f} bytes where all are negative")
    holds, word = CLAIMS[row.claim]
    checks: list[tuple[str, Callable[[], bool]]] = [
        ("ranks differ", lambda: alike(row)),
        ("sent and owed do not add up", lambda: adds_up(row)),
        (word, lambda: holds(row)),
        ("NaN of zeros", lambda: finite(row, 0.0)),
        ("not finite at 40,000", lambda: finite(row, 4e4)),
        ("sets torch's seed", lambda: not seeds(row)),
    ]
    for message, check in checks:
        with without_gpu():
            if not check():
                out.append(message)
    return sent, out


def begin(rank: int, world: int, port: int) -> None:
    """Start a world with gloo on this host, with one thread per rank."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )


def check(rank: int, port: int, asked: argparse.Namespace, answers: Any) -> None:
    """Run the checks as one of two ranks; the first rank returns the results."""
    begin(rank, 2, port)
    listed = []
    for row in rows(asked.grace, asked.powersgd, asked.only):
        torch.manual_seed(1 + rank)  # users do this so that dropout differs by rank
        listed.append(faults(row))
    if rank == 0:
        answers.put(listed)
    dist.barrier()
    dist.destroy_process_group()


def checked(asked: argparse.Namespace) -> list[tuple[float | None, list[str]]]:
    """Return the bytes and the failed checks of all rows."""
    port = free_port()
    spawned = mp.get_context("spawn")
    answers = spawned.SimpleQueue()
    ranks = [spawned.Process(target=check, args=(r, port, asked, answers)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit("a rank of the checks failed")
    out: list[tuple[float | None, list[str]]] = answers.get()
    return out


def free_port() -> int:
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        port: int = socket_.getsockname()[1]
        return port


def line(row: Row, times: Sequence[str], sent: float | None, wrong: Sequence[str]) -> str:
    """Return the text of a row, with at most 80 columns in each line."""
    answer = "no: " + ", ".join(wrong) if wrong else "yes"
    head = f"{row.method:10}{row.by:14}" + "".join(f"{t:>10}" for t in times)
    head += f"{'-' if sent is None else f'{sent:.4f}':>9}  "
    parts = textwrap.wrap(answer, 80 - len(head))
    return "\n".join([head + parts[0], *(" " * len(head) + part for part in parts[1:])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grace", metavar="FOLDER", help="a checkout of sands-lab/grace")
    parser.add_argument("--powersgd", metavar="FOLDER", help="a checkout of epfml/powersgd")
    parser.add_argument("--only", default=[], type=lambda s: s.split(","), metavar="METHODS")
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 20, 1 << 23])
    asked = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    verified = checked(asked)
    begin(0, 1, free_port())
    every = rows(asked.grace, asked.powersgd, asked.only)
    millions = "".join(f"{f'{n / 2**20:g} Mi':>10}" for n in asked.elements)
    print(f"{'method':10}{'by':14}{millions}{'bytes':>9}  correct?")
    for method in dict.fromkeys(row.method for row in every):
        places = [i for i, row in enumerate(every) if row.method == method]
        with without_gpu():
            times = [seconds([every[i] for i in places], n) for n in asked.elements]
        for j, i in enumerate(places):
            cells = [cell(took[j], took[0]) for took in times]
            print(line(every[i], cells, *verified[i]), flush=True)
    print("\nTimes: encode and decode on one rank; ours in ms, others as a multiple of it.")
    print("Bytes: sent by one of two ranks per element of a gradient.")
    dist.destroy_process_group()


def cell(took: float | None, own_s: float | None) -> str:
    """Return this project's time in ms, or another project's time as a multiple of it."""
    if took is None or own_s is None:
        return "-"
    return f"{1e3 * took:.2f} ms" if took == own_s else f"{took / own_s:.2f}x"


if __name__ == "__main__":
    main()
