"""Recipes that vary length, size, batch, readers or checkpoints, at the site's world size."""

from __future__ import annotations

from recipes import AS_TRAINED, SELECTIVE, protocol_for

from harness import ON_GPUS, PACED, FaultScenario, Mode, Plan, Precision, Site
from harness.cases import ladders

#: Sequence lengths in tokens, on GPUs and on CPUs. A million tokens fit only if ranks divide the
#: sequence.
ON_GPU = (4096, 16384, 65536, 262144, 1048576)
#: Tokens of a sample on CPU ranks, which train a tiny model.
ON_CPU = (32, 64, 128)
#: Power limits of a GPU in W. A limit that the board does not support gives SKIP, with the
#: supported range.
WATTS = (600, 500, 400, 300)


def here(site: Site) -> Site:
    """Return the site, or two CPU ranks if it has only one rank."""
    return site if site.world_size > 1 else site.cpu(2)


def lengths(site: Site) -> list[Plan]:
    """Train the same number of tokens in ever longer sequences.

    A sequence is trained by one rank, or is divided among all ranks.
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
    """Find the largest model that these devices can train, and the MFU of each size."""
    on_gpus = site.device == "cuda"
    names = ("124m", "350m", "1b3", "llama-8b", "llama-70b")
    more = {**AS_TRAINED, **SELECTIVE} if on_gpus else {}
    case = here(site).case(f"fsdp/decoder-{'124m' if on_gpus else 'nano'}", Mode.WEAK, **more)
    some = names if on_gpus else ("nano", "tiny", "mini")
    return [ladders.sizes(case, some, protocol=protocol_for(site))]


def batches(site: Site) -> list[Plan]:
    """Find the critical batch size for a small artificial language with a known loss floor."""
    where = here(site)
    more = AS_TRAINED if where.device == "cuda" else {}
    case = where.case("ddp/decoder-nano", Mode.WEAK, **more)
    return [ladders.batches(case, (4, 8, 16, 32))]


def interference(site: Site) -> list[Plan]:
    """Measure how much a second job on the same nodes slows the first one."""
    where = site if site.world_size >= 4 and site.world_size % 4 == 0 else site.cpu(4)
    on_gpus = where.device == "cuda"
    model = "decoder-350m" if on_gpus else "paced-small"
    case = where.case(f"two_jobs/{model}", Mode.WEAK, **(AS_TRAINED if on_gpus else {}))
    return [ladders.interference(case, protocol=ON_GPUS if on_gpus else PACED)]


def power_caps(site: Site) -> list[Plan]:
    """Measure speed and energy per token under lower power limits; there is no plan for CPUs."""
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
    """Save checkpoints with ever more ranks, both synchronously and in the background."""
    where = here(site)
    model = "decoder-350m" if where.device == "cuda" else "decoder-tiny"
    case = where.case(f"fsdp/{model}", **(AS_TRAINED if where.device == "cuda" else {}))
    return ladders.checkpoints(case, [n for n in where.worlds if n > 1])
