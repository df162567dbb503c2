"""Recipes that sweep sequence length, model size, batch, interference, power, readers, checkpoints.

The number of ranks stays that of the site, except in the sweeps over readers and checkpoints.
"""

from __future__ import annotations

from recipes import AS_TRAINED, SELECTIVE, protocol_for

from harness import ON_GPUS, PACED, FaultScenario, Mode, Plan, Precision, Site
from harness.cases import ladders

#: Tokens of a sample on GPUs; ranks that share a sequence reach a million.
ON_GPU = (4096, 16384, 65536, 262144, 1048576)
#: Tokens of a sample on CPU ranks, which train a tiny model.
ON_CPU = (32, 64, 128)
#: Power limits of a GPU, in watts. A limit that the board does not accept is a SKIP, which states
#: the accepted range.
WATTS = (600, 500, 400, 300)


def here(site: Site) -> Site:
    """Return the site, or two CPU ranks if it has only one rank."""
    return site if site.world_size > 1 else site.cpu(2)


def lengths(site: Site) -> list[Plan]:
    """Increase the sequence length at constant tokens per rank, for sequences of one rank and for
    sequences that all ranks share.
    """
    on_gpus = site.device == "cuda"
    where = here(site)
    model = "decoder-350m" if on_gpus else "decoder-nano"
    usual = AS_TRAINED if on_gpus else {}
    alone = where.case(f"fsdp/{model}", Mode.WEAK, **usual, **(SELECTIVE if on_gpus else {}))
    shared = where.case(
        f"context_parallel/{model}", Mode.WEAK, **({"precision": Precision.BF16} if on_gpus else {})
    )
    seqs = ON_GPU if on_gpus else ON_CPU
    protocol = protocol_for(site)
    return [
        ladders.lengths(case, seqs, tokens=max(seqs), protocol=protocol) for case in (alone, shared)
    ]


def sizes(site: Site) -> list[Plan]:
    """Increase the model size, to find the largest model that fits and how busy each size keeps
    the devices.
    """
    on_gpus = site.device == "cuda"
    names = ("124m", "350m", "1b3", "llama-8b", "llama-70b")
    more = {**AS_TRAINED, **SELECTIVE} if on_gpus else {}
    case = here(site).case(f"fsdp/decoder-{'124m' if on_gpus else 'nano'}", Mode.WEAK, **more)
    some = names if on_gpus else ("nano", "tiny", "mini")
    return [ladders.sizes(case, some, protocol=protocol_for(site))]


def batches(site: Site) -> list[Plan]:
    """Find the critical batch size on a small synthetic language whose lowest loss is known."""
    where = here(site)
    more = AS_TRAINED if where.device == "cuda" else {}
    case = where.case("ddp/decoder-nano", Mode.WEAK, **more)
    return [ladders.batches(case, (4, 8, 16, 32))]


def interference(site: Site) -> list[Plan]:
    """Measure how much a second job on the same nodes slows a first one."""
    where = site if site.world_size >= 4 and site.world_size % 4 == 0 else site.cpu(4)
    on_gpus = where.device == "cuda"
    model = "decoder-350m" if on_gpus else "paced-small"
    case = where.case(f"two_jobs/{model}", Mode.WEAK, **(AS_TRAINED if on_gpus else {}))
    return [ladders.interference(case, protocol=ON_GPUS if on_gpus else PACED)]


def power_caps(site: Site) -> list[Plan]:
    """Measure time and energy per token as the power limit of GPUs decreases.

    The list is empty on CPU ranks, which have no such limit.
    """
    if site.device != "cuda":
        return []
    case = site.case("ddp/decoder-350m", Mode.WEAK, **AS_TRAINED)
    return [ladders.power_caps(case, WATTS, protocol=ON_GPUS)]


def readers(site: Site) -> list[Plan]:
    """Measure the cost of reading files as the number of reading ranks grows."""
    where = here(site)
    case = where.case("ddp/resnet-nano", Mode.WEAK, data="files")
    return [ladders.readers(case, where.worlds, protocol=protocol_for(site))]


def checkpoints(site: Site) -> list[FaultScenario]:
    """Save checkpoints at increasing world sizes, synchronously and in the background."""
    where = here(site)
    model = "decoder-350m" if where.device == "cuda" else "decoder-tiny"
    case = where.case(f"fsdp/{model}", **(AS_TRAINED if where.device == "cuda" else {}))
    return ladders.checkpoints(case, [n for n in where.worlds if n > 1])
