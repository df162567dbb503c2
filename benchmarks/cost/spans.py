"""Measure the cost of a span, without and with a running profiler.

    python benchmarks/cost/spans.py [--spans 20000]

Spans, an empty context manager and torch's ``record_function`` take turns in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from harness.training.observe import spans

MAKE: dict[str, Callable[[int], AbstractContextManager[object]]] = {
    "nothing": lambda i: contextlib.nullcontext(),
    "span": lambda i: spans.span("step", payload=i),
    "record_function": lambda i: record_function("step"),
}


def cost_us(make: Callable[[int], AbstractContextManager[object]], num: int) -> float:
    """Return the mean time (us) of one span, over ``num`` of them."""
    began = time.perf_counter()
    for i in range(num):
        with make(i):
            pass
    return (time.perf_counter() - began) / num * 1e6


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=20_000)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 5
    print("| | us, no profiler | us, profiled |")
    print("|---|---|---|")
    off: dict[str, list[float]] = {name: [] for name in MAKE}
    on: dict[str, list[float]] = {name: [] for name in MAKE}
    for _ in range(rounds):
        for name, make in MAKE.items():
            off[name].append(cost_us(make, parsed.spans // rounds))
    with profile(activities=[ProfilerActivity.CPU]):
        spans.profile(True)
        for _ in range(rounds):
            for name, make in MAKE.items():
                on[name].append(cost_us(make, parsed.spans // rounds))
        spans.profile(False)
    for name in MAKE:
        print(f"| {name} | {median(off[name]):.2f} | {median(on[name]):.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
