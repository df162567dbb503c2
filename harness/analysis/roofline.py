"""The least time of a step by the data sheet of a device.

Each product takes its FLOPs over the peak or its bytes over the memory's rate, whichever is more;
all else is bound by memory (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
Kernels reach 0.45 to 0.7 of it in published trainings of large models (docs/gpus.md).
"""

from dataclasses import dataclass

from harness.cases import CaseSpec
from harness.host.devices import Sheet, named
from harness.record import Described, Work

#: Below this MFU a case cannot fill a GPU: what it shows is how things work.
MECHANICS = 0.10


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of a step, by what takes them."""

    products_s: float
    attention_s: float
    memory_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.products_s + self.attention_s + self.memory_s + self.update_s


def mfu_of(described: Described, case: CaseSpec, gpu: str | None) -> float | None:
    """The MFU of a case by the roofline of that device, at its ideal efficiency; None if unknown.

    It is above 1 where attention is causal, since MFU counts all of its scores (PaLM, 2022).
    """
    sheet = named(gpu)
    facts = described.facts
    expected = described.expected
    if sheet is None or facts is None or expected is None or described.work is None:
        return None
    peak = sheet.tflops.get(case.dtype)
    bound = roofline(described.work, sheet, case.world_size)
    if peak is None or bound is None:
        return None
    flops = facts.flops_per_sample * described.work.samples
    return expected.ideal_efficiency * flops / bound.step_s / (1e12 * peak)


def roofline(work: Work, sheet: Sheet, shards: int = 1) -> Roofline | None:
    """The bound of a step whose optimizer is cut over ``shards``; None where no sheet says.

    A product in a dtype without a peak takes that of float32, as it runs on no tensor core.
    """
    if sheet.memory_gb_s is None:
        return None
    bandwidth = 1e9 * sheet.memory_gb_s
    seconds = {"product": 0.0, "attention": 0.0}
    for product in work.products:
        tflops = sheet.tflops.get(product.dtype, sheet.tflops.get("float32"))
        if tflops is None:
            return None
        computing_s = product.flops / (1e12 * tflops)
        seconds[product.kind] += product.count * max(computing_s, product.moved_bytes / bandwidth)
    return Roofline(
        products_s=seconds["product"],
        attention_s=seconds["attention"],
        memory_s=work.moved_bytes / bandwidth,
        update_s=work.update_bytes / shards / bandwidth,
    )
