"""Recipes that compare kinds of parallelism: data, pipeline, tensor, context, expert, combined."""

from __future__ import annotations

from typing import Any

from recipes import protocol_for

from harness import (
    ON_GPUS,
    PACED,
    CaseSpec,
    Mode,
    Plan,
    Precision,
    Protocol,
    Site,
    beside,
    versus,
)

#: The pipeline schedules that are compared.
SCHEDULES = ("gpipe", "1f1b", "interleaved", "looped_bfs", "interleaved_zb", "zbv", "dualpipev")


def schedules(site: Site) -> list[Plan]:
    """Compare pipeline schedules with 4 stages and simulated compute: step time, bubble and memory.

    GPipe also runs with a single micro-batch.
    """
    here = site.cpu(4)

    def case(schedule: str, micro: int) -> CaseSpec:
        knobs = {"pipeline.schedule": schedule, "pipeline.microbatches": micro}
        return here.case("pipeline/paced-small", Mode.WEAK, knobs=knobs)

    cases = {"one micro-batch": case("gpipe", 1), **{s: case(s, 8) for s in SCHEDULES}}
    metrics = ("step_s", "throughput_ratio", "bubble_share", "peak_bytes")
    return [beside("pipeline schedules", cases, metrics, protocol=PACED)]


def schedule_memory(site: Site) -> list[Plan]:
    """Measure the memory that 1F1B saves relative to GPipe.

    1F1B keeps the activations of as many micro-batches as there are stages; GPipe keeps those of
    all micro-batches.
    """
    here = site if site.world_size >= 4 else site.cpu(4)
    model = "decoder-1b3" if site.device == "cuda" else "decoder-mini"
    precision = Precision.BF16 if site.device == "cuda" else Precision.FP32

    def case(schedule: str) -> CaseSpec:
        knobs = {"pipeline.schedule": schedule, "pipeline.microbatches": 16}
        return here.case(
            f"pipeline/{model}", Mode.WEAK, micro_batch=16, precision=precision, knobs=knobs
        )

    protocol = Protocol(steps=8, cut=2) if here.device == "cpu" else ON_GPUS
    return [versus(case("gpipe"), case("1f1b"), ("memory_saved",), protocol=protocol)]


def variants(site: Site) -> list[Plan]:
    """Compare the variants of data parallelism on one model: step time, sent bytes and memory."""
    here = site if site.world_size > 1 else site.cpu(2)
    model = "decoder-1b3" if site.device == "cuda" else "mlp-wide"
    on_gpus = here.device == "cuda"
    precision = Precision.AUTOCAST if on_gpus else Precision.FP32

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        return here.case(f"{strategy}/{model}", Mode.WEAK, precision=precision, knobs=knobs)

    cases = {
        "ddp": case("ddp"),
        "ddp, a tensor at a time": case("ddp_naive"),
        "ddp, optimizer in backward": case("ddp", **{"ddp.overlap_optimizer": True}),
        "replicate": case("replicate"),
        "ZeRO-1": case("zero1"),
        "ZeRO-2": case("fsdp", **{"fsdp.reshard": False}),
        "ZeRO-3": case("fsdp"),
        "ZeRO-3 over all-to-all": case("fsdp", **{"fsdp.scatter": "all_to_all"}),
    }
    if not on_gpus:  # FSDP1 supports fp32 only, and this plan trains with autocast on GPUs.
        cases["FSDP1"] = case("fsdp1")
    metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
    return [beside("data parallel", cases, metrics, protocol=protocol_for(site))]


def batches(site: Site) -> list[Plan]:
    """Compare gradient clipping, LAMB and uneven batches with DDP on samples of equal length."""
    here = site if site.world_size > 1 else site.cpu(2)
    size = "124m" if site.device == "cuda" else "mini"
    precision = Precision.AUTOCAST if here.device == "cuda" else Precision.FP32

    def case(name: str, **fields: Any) -> CaseSpec:
        return here.case(f"{name}-{size}", Mode.WEAK, precision=precision, **fields)

    cases = {
        "even": case("ddp/decoder"),
        "clipped": case("ddp/decoder", clip=1.0),
        "LAMB": case("ddp/decoder", optimizer="lamb"),
        "FSDP, clipped": case("fsdp/decoder", clip=1.0),
        "FSDP, LAMB": case("fsdp/decoder", optimizer="lamb"),
        "short last batch": case("ddp/decoder", last_batch=0.5),
        "Join": case("ddp_join/decoder", last_batch=0.5),
        "ragged": case("ddp/ragged"),
        "long tail": case("ddp/ragged", knobs={"ragged.length_dist": "long_tail"}),
    }
    metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
    return [beside("batches", cases, metrics, protocol=protocol_for(site))]


def optimizers(site: Site) -> list[Plan]:
    """Compare optimizers with AdamW under DDP, ZeRO-1 and FSDP.

    Under FSDP, Muon has to gather matrices. Under ZeRO-1, ranks divide the optimizer's work.
    """
    here = site if site.world_size > 1 else site.cpu(2)
    size = "124m" if site.device == "cuda" else "mini"
    precision = Precision.AUTOCAST if here.device == "cuda" else Precision.FP32

    def case(strategy: str, optimizer: str) -> CaseSpec:
        return here.case(
            f"{strategy}/decoder-{size}", Mode.WEAK, precision=precision, optimizer=optimizer
        )

    plans = []
    for strategy, names in (
        ("ddp", ("adamw", "adafactor", "lamb", "muon", "shampoo")),
        ("zero1", ("adamw", "muon", "shampoo")),
        ("fsdp", ("adamw", "lamb", "muon")),
    ):
        cases = {name: case(strategy, name) for name in names}
        metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
        made = beside(f"optimizers, {strategy}", cases, metrics, protocol=protocol_for(site))
        plans.append(made)
    return plans


def roles(site: Site) -> list[Plan]:
    """Compare actors and learners with training on all ranks, with simulated compute."""
    here = site.cpu(4)

    def case(strategy: str, passes: int = 1) -> CaseSpec:
        knobs = {f"{strategy}.passes": passes} if passes > 1 else {}
        return here.case(f"{strategy}/paced-small", Mode.WEAK, knobs=knobs)

    cases = {
        "all learners": case("ddp"),
        "half actors": case("actor_learner"),
        "half actors, 4 passes": case("actor_learner", 4),
    }
    return [beside("roles", cases, ("step_s", "throughput_ratio", "sent_bytes"), protocol=PACED)]


def widths(site: Site) -> list[Plan]:
    """Compare tensor and context parallelism with fully sharded data parallelism."""
    here = site if site.world_size > 1 else site.cpu(2)
    model = "decoder-1b3" if site.device == "cuda" else "decoder-mini"
    precision = Precision.BF16 if site.device == "cuda" else Precision.FP32

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        own = {f"{strategy}.{name}": value for name, value in knobs.items()}
        return here.case(f"{strategy}/{model}", Mode.WEAK, precision=precision, knobs=own)

    cases = {
        "fsdp": case("fsdp"),
        "tensor": case("tensor_parallel"),
        "tensor, sequence": case("tensor_parallel", sequence=True),
        "tensor, sequence, loss": case("tensor_parallel", sequence=True, loss=True),
        "context, ring": case("context_parallel"),
        "context, all-gather": case("context_parallel", attention="all_gather"),
        "context, Ulysses": case("context_parallel", attention="ulysses"),
    }
    metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
    return [beside("model parallel", cases, metrics, protocol=protocol_for(site))]


def experts(site: Site) -> list[Plan]:
    """Compare a mixture of experts on one and on all ranks: with one or two experts per token, and
    with a larger capacity.
    """
    here = site if site.world_size > 1 else site.cpu(2)
    model = "moe-243m" if site.device == "cuda" else "moe-small"
    precision = Precision.BF16 if here.device == "cuda" else Precision.FP32

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        return here.case(f"{strategy}/{model}", Mode.WEAK, precision=precision, knobs=knobs)

    cases = {
        "replicated": case("ddp"),
        "shared out": case("expert_parallel"),
        "shared out, top 1": case("expert_parallel", **{"moe.top": 1}),
        "shared out, room for all": case("expert_parallel", **{"moe.capacity": 8.0}),
    }
    metrics = (
        "step_s", "throughput_ratio", "sent_bytes", "peak_bytes", "expert_load_variation",
        "dropped_tokens",
    )  # fmt: skip
    return [beside("experts", cases, metrics, protocol=protocol_for(site))]


def products(site: Site) -> list[Plan]:
    """Compare combinations of two kinds of parallelism, on 4 CPU ranks or on 8 and more GPUs."""
    gpus = site.device == "cuda" and site.world_size >= 8
    here = site if gpus else site.cpu(4)
    model = "decoder-1b3" if gpus else "decoder-nano"
    inner = here.world_size // 2
    ways = {
        "fsdp": ("fsdp", "", {}),
        "hybrid": ("fsdp", f"dp:2,fsdp:{inner}", {}),
        "fsdp x tensor": ("tensor_parallel", f"fsdp:2,tp:{inner}", {}),
        "fsdp x context": ("context_parallel", f"fsdp:2,cp:{inner}", {}),
        "pipeline x fsdp": ("pipeline", f"pp:2,fsdp:{inner}", {"pipeline.schedule": "1f1b"}),
        "pipeline x tensor, sequence": (
            "pipeline", f"pp:2,tp:{inner}",
            {"pipeline.schedule": "1f1b", "pipeline.sequence": True},
        ),
    }  # fmt: skip
    precision = Precision.BF16 if gpus else Precision.FP32
    cases = {
        name: here.case(
            f"{strategy}/{model}", Mode.WEAK, mesh=mesh, knobs=knobs, precision=precision
        )
        for name, (strategy, mesh, knobs) in ways.items()
    }
    metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
    return [beside("products", cases, metrics, protocol=protocol_for(site))]
