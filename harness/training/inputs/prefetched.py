"""Input ``prefetched``: a thread makes the batches of the next steps during the current one."""

from concurrent.futures import Future, ThreadPoolExecutor

from harness.training.context import Knobs
from harness.training.data import Batch
from harness.training.feeds import Feed, Source

INPUT = dict(instead=("resident",))

#: Number of batches that are made ahead of the current step.
AHEAD = 2


def feed(source: Source, knobs: Knobs) -> Feed:
    """Return a feed that makes batches while the training uses earlier ones."""
    maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    waiting: dict[int, Future[Batch]] = {}

    def take(step: int) -> Batch:
        for coming in range(step, min(step + AHEAD + 1, source.steps)):
            if coming not in waiting:
                waiting[coming] = maker.submit(source.make, coming)
        batch = waiting[step].result()
        if step + 1 == source.steps:
            maker.shutdown()
        return batch

    return take
