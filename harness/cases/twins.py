"""The twin of a case: the same training at a small model size.

The correctness check compares the twin with a single device. It can therefore check cases, such as
an 8B model, that do not fit on one device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.base.documents import Json
from harness.cases.case import CaseSpec, Mode

#: Multiples of a size's default batch that are tried as the twin's batch. A pipeline needs at least
#: one sample for each micro-batch.
TIMES = (1, 2, 4, 8)


def candidates(
    case: CaseSpec, sizes: Mapping[str, Mapping[str, Json]], less: Mapping[str, Json]
) -> Iterator[CaseSpec]:
    """Yield the cases that could be the twin: the smallest size first, the case itself last.

    ``less`` holds knobs with reduced values, with which a few steps suffice to check the strategy.
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
    """Return the knobs that exceed their limits in the file's ``TWIN``, set to these limits."""
    return {f"{strategy}.{knob}": limit for knob, limit in most.items() if asked[knob] > limit}
