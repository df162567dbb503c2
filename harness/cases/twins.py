"""The twin of a case: the same training of a small size, which the gate checks against one device.

The twin is what lets an 8B case be checked against a single-device reference at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.base.documents import Json
from harness.cases.case import CaseSpec, Mode

#: Batches that are tried, in those of the size: a pipeline wants a sample for each micro-batch.
TIMES = (1, 2, 4, 8)


def candidates(
    case: CaseSpec, sizes: Mapping[str, Mapping[str, Json]], less: Mapping[str, Json]
) -> Iterator[CaseSpec]:
    """The cases that could be the twin, the smallest first, the case itself last.

    ``less`` are knobs of the strategy at fewer than the case asks for, so that few steps check it.
    """
    case = replace(case, knobs={**case.knobs, **less})
    shards = case.world_size * case.accumulate
    strong = case.mode is Mode.STRONG
    for name, size in sizes.items():
        if name == case.size and case.seq_len is None:
            break
        for times in TIMES:
            batch = times * int(size["batch"])
            yield replace(
                case,
                size=name,
                seq_len=None,
                micro_batch=None if strong or times == 1 else batch,
                global_batch=batch * shards if strong else None,
            )
        if name == case.size:
            break
    yield case


def fewer(strategy: str, asked: Mapping[str, Json], most: Mapping[str, Json]) -> dict[str, Json]:
    """The knobs of a strategy that are more than its head's ``TWIN`` says, at what it says."""
    return {f"{strategy}.{knob}": limit for knob, limit in most.items() if asked[knob] > limit}
