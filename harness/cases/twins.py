"""The twin of a case: the same training at a small model size.

The correctness check compares the twin with one device. This makes an 8B case checkable that does
not fit on a single device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.base.documents import Json
from harness.cases.case import CaseSpec, Mode

#: Multiples of the size's default batch that are tried. A pipeline needs one sample for each
#: micro-batch.
TIMES = (1, 2, 4, 8)


def candidates(
    case: CaseSpec, sizes: Mapping[str, Mapping[str, Json]], less: Mapping[str, Json]
) -> Iterator[CaseSpec]:
    """Yield the cases that could be the twin: the smallest size first, the case itself last.

    ``less`` holds knobs of the strategy with reduced values, so that few steps are enough to check
    it.
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
    """Return the knobs that exceed the limits in the ``TWIN`` head of the strategy, set to those
    limits.
    """
    return {f"{strategy}.{knob}": limit for knob, limit in most.items() if asked[knob] > limit}
