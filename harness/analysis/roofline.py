"""The least time of a step by the data sheet of a device (its roofline).

Each product takes its FLOPs over the peak rate or its bytes over the memory's rate, whichever is
longer. Everything else is bound by memory (Williams, Waterman and Patterson, "Roofline", CACM
52(4), 2009). Kernels reach 0.45 to 0.7 of it in published trainings of large models (docs/gpus.md).
"""

from dataclasses import dataclass

from harness.cases import CaseSpec
from harness.host.devices import Sheet, named
from harness.record import Described, Work

#: MFU below which a case is too small to use a GPU well. Such a case shows mechanics, not speed.
MECHANICS = 0.10


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The least seconds of a step, by kind of work."""

    products_s: float
    attention_s: float
    memory_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.products_s + self.attention_s + self.memory_s + self.update_s


def mfu_of(described: Described, case: CaseSpec, gpu: str | None) -> float | None:
    """Return the MFU of a case by the roofline of a device at its ideal efficiency, or None.

    It can exceed 1 for causal attention, because MFU counts all attention scores (PaLM, 2022).
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
    """Return the bound of a step whose optimizer is divided over ``shards``, or None if unknown.

    A product in a dtype without a peak uses that of float32, because it runs on no tensor core.
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
