"""The roofline of a device: the least possible time of a step according to its data sheet.

The time of a matrix product is limited by the peak FLOP/s or by the bandwidth of the memory,
whichever takes longer. All other operations are limited by the memory (Williams, Waterman and
Patterson, "Roofline", CACM 52(4), 2009). Published trainings of large models reach 0.45 to 0.7 of
the speed that the roofline allows (docs/gpus.md).
"""

from dataclasses import dataclass

from harness.cases import CaseSpec
from harness.host.devices import Sheet, named
from harness.record import Described, Work

#: A case whose MFU is below this value is too small to use a GPU well. It shows whether training
#: works, but not how fast it can be.
MECHANICS = 0.10


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The least possible time of a step by kind of work, in s."""

    products_s: float
    attention_s: float
    memory_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.products_s + self.attention_s + self.memory_s + self.update_s


def mfu_of(described: Described, case: CaseSpec, gpu: str | None) -> float | None:
    """Return the MFU (model FLOPs utilisation) that the roofline of a device allows, or None.

    It includes the ideal efficiency of the case's schedule. It can exceed 1 for causal attention,
    because MFU counts all attention scores (PaLM, 2022).
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
    """Return the least time of a step, or None if it is unknown.

    The work of the optimizer is divided over ``shards`` ranks. If the data sheet has no peak for
    the dtype of a product, the peak of float32 is used, because the product does not run on tensor
    cores.
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
