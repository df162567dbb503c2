"""The recipes of the shipped suites, as functions of the site. Bounds are in thresholds.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness import (
    ON_GPUS,
    PACED,
    REAL,
    CaseSpec,
    Course,
    Fault,
    Mode,
    Plan,
    Precision,
    Protocol,
    Recipe,
    Site,
    beside,
    control,
    ladder,
    learning,
    like,
    resharded,
    rungs,
    shapes,
    strong_worlds,
    versus,
)

#: The model that fits the device: milliseconds a step on one core, or a GPU's worth of work.
CPU_MODEL, GPU_MODEL = "decoder-tiny", "decoder-350m"
#: What each family trains on GPUs, as people do: bf16, 16k tokens a rank and more, sharded and cut
#: models of a size that needs it, and codecs where communication is what bounds the step.
ON_GPU: Mapping[str, tuple[str, dict[str, Any]]] = {
    "ddp": (GPU_MODEL, dict(precision=Precision.AUTOCAST, seq_len=2048, micro_batch=8)),
    "fsdp": (
        "decoder-1b3",
        dict(precision=Precision.AUTOCAST, seq_len=2048, micro_batch=4, checkpoint=True),
    ),
    "pipeline": ("decoder-1b3", dict(precision=Precision.BF16, seq_len=2048, checkpoint=True)),
    "compressed": ("mlp-8192", dict(precision=Precision.AUTOCAST)),
}
#: Nodes, and GPUs on each, that ladders on GPUs foresee: recorded, never judged.
FORESEEN = {"ddp": (64, 8), "fsdp": (64, 8)}
#: What ladders are judged by, where that is not efficiency alone.
METRICS = {"pipeline": ("efficiency", "efficiency_of_ideal")}


def model_for(site: Site) -> str:
    """A decoder of the right size for the site's device."""
    return GPU_MODEL if site.device == "cuda" else CPU_MODEL


def trained(strategy: str, site: Site, mode: Mode, **fields: Any) -> CaseSpec:
    """What a family trains on the site's device."""
    model, more = CPU_MODEL, dict[str, Any]()
    if site.device == "cuda":
        model, more = ON_GPU[strategy.partition(":")[0]]
    return site.case(f"{strategy}/{model}", mode, **{**more, **fields})


def protocol_for(site: Site) -> Protocol:
    """Windows in steps on cores, in seconds where clocks have to settle."""
    return ON_GPUS if site.device == "cuda" else REAL


def weak(strategy: str, *, wrapped: bool = True, **fields: Any) -> Recipe:
    """A weak ladder over the site's world sizes, with real compute.

    Without ``wrapped`` it leaves out what the strategy costs on one rank.
    """

    def recipe(site: Site) -> list[Plan]:
        return [
            ladder(
                trained(strategy, site, Mode.WEAK, **fields),
                site.worlds if wrapped else [n for n in site.worlds if n > 1] or [1],
                shape=site.shape,
                baselines=("plain", "wrapped") if wrapped else ("plain",),
                metrics=METRICS.get(strategy, ("efficiency",)),
                protocol=protocol_for(site),
                predict=FORESEEN.get(strategy) if _foresees(site) else None,
            )
        ]

    return recipe


def _foresees(site: Site) -> bool:
    """One device shows no exchange, and CPU ranks share their cores."""
    return site.device == "cuda" and site.world_size > 1


def filled() -> Recipe:
    """A weak ladder of pipelines with two micro-batches a stage and more at every rung."""

    def recipe(site: Site) -> list[Plan]:
        count = max(4, 2 * site.world_size)
        more = {} if count == 4 else dict(micro_batch=count)
        knobs: dict[str, Any] = {"pipeline.microbatches": count}
        if site.device == "cuda":  # else the last stage would hold all micro-batches' logits
            knobs["pipeline.schedule"] = "1f1b"
        return weak("pipeline", knobs=knobs, **more)(site)

    return recipe


def strong(strategy: str, *, global_batch: int) -> Recipe:
    """A strong ladder of the world sizes that divide its global batch.

    On GPUs four times that batch, with activations computed again: the baseline has to fit.
    """

    def recipe(site: Site) -> list[Plan]:
        on_gpus = site.device == "cuda"
        more: dict[str, Any] = dict(checkpoint=True) if on_gpus else {}
        batch = global_batch * (4 if on_gpus else 1)
        case = trained(strategy, site, Mode.STRONG, global_batch=batch, micro_batch=None, **more)
        worlds = [n for n in strong_worlds(case, site.worlds) if n > 1] or [1]
        return [
            ladder(
                case,
                worlds,
                shape=site.shape,
                baselines=("plain",),
                metrics=METRICS.get(strategy, ("efficiency",)),
                protocol=protocol_for(site),
            )
        ]

    return recipe


def paced(strategy: str, largest: int = 4, smallest: int = 2, **fields: Any) -> Recipe:
    """A weak ladder of the paced stand-in: what is sent is sent, compute waits."""

    def recipe(site: Site) -> list[Plan]:
        here = site.cpu(largest)
        case = here.case(f"{strategy}/paced-small", Mode.WEAK, **fields)
        return [
            ladder(
                case,
                [n for n in here.worlds if n >= smallest],
                baselines=("plain",),
                protocol=PACED,
                metrics=METRICS.get(strategy, ("efficiency",)),
            )
        ]

    return recipe


def planted(strategy: str, plant: str, largest: int = 4, **knob: float) -> Recipe:
    """A scheduled stand-in with a planted efficiency: a test of the measurement itself."""
    knobs: dict[str, Any] = {"paced.mode": "schedule", "paced.plant": plant}
    knobs |= {f"paced.{name}": value for name, value in knob.items()}

    def recipe(site: Site) -> list[Plan]:
        here = site.cpu(largest)
        case = here.case(f"{strategy}/paced-small", Mode.WEAK, knobs=knobs)
        return [ladder(case, (largest,), protocol=PACED, baselines=("plain",))]

    return recipe


def same(largest: int = 2) -> Recipe:
    """A scheduled stand-in against itself: a verdict on 1.0 must stay open."""
    knobs = {"paced.mode": "schedule"}

    def recipe(site: Site) -> list[Plan]:
        case = site.cpu(largest).case("ddp/paced-small", knobs=knobs)
        return [like(case, protocol=PACED)]

    return recipe


def spread(strategy: str) -> Recipe:
    """The ranks of one node, placed on one node and spread evenly over several nodes."""

    def recipe(site: Site) -> list[Plan]:
        ranks = min(site.nodes)
        counts = [n for n in range(2, len(site.nodes) + 1) if ranks % n == 0]
        if not counts:
            return []
        layouts = [(ranks,), *((ranks // n,) * n for n in counts)]
        return [shapes(site.case(f"{strategy}/{model_for(site)}", Mode.WEAK), layouts)]

    return recipe


def across(strategy: str) -> Recipe:
    """A weak ladder of whole nodes with one node as baseline: 8, 16, 32 ranks on 1, 2, 4 nodes."""

    def recipe(site: Site) -> list[Plan]:
        if len(site.nodes) < 2:
            return []
        case = trained(strategy, site, Mode.WEAK)
        worlds = [sum(site.nodes[:n]) for n in rungs(len(site.nodes))]
        metrics = METRICS.get(strategy, ("efficiency",))
        return [
            ladder(
                case,
                worlds,
                shape=site.shape,
                baselines=("one_node",),
                metrics=metrics,
                protocol=protocol_for(site),
            )
        ]

    return recipe


def masked(model: str = "decoder-nano") -> Recipe:
    """A compressor that claims top-k but sends dense gradients: the gate must catch it."""

    def recipe(site: Site) -> list[Plan]:
        return [control(site.cpu(2).case(f"compressed:masked_topk/{model}"))]

    return recipe


def broken(strategy: str) -> Callable[[Site], list[Course]]:
    """A training that crashes, hangs or loses an agent or node, then resumes, also resized."""

    def recipe(site: Site) -> list[Course]:
        if site.world_size < 2:
            return []
        model = "decoder-nano" if site.device == "cpu" else GPU_MODEL
        case = site.case(f"{strategy}/{model}")
        faults = [Fault.KILL, Fault.HANG, *map(Fault, site.faults)]
        courses = [Course(case=case, fault=fault) for fault in faults]
        courses.append(Course(case=case, fault=Fault.KILL, asynchronous=True))
        return [*courses, *(resharded(case) if len(site.nodes) == 1 else ())]

    return recipe


def claim_175m_b64(site: Site) -> list[Plan]:
    """The usual claim: 175M decoder, strong, global batch 64, one device as baseline."""
    if site.device != "cuda":
        return []
    case = site.case("ddp/decoder-175m", Mode.STRONG, global_batch=64, precision="autocast")
    worlds = [n for n in strong_worlds(case, site.worlds) if n in (1, 2, 4, 8)]
    metrics = ("speedup", "efficiency")
    return [ladder(case, worlds, baselines=("plain",), metrics=metrics, protocol=ON_GPUS)]


def claim_1b3_4x8(site: Site) -> list[Plan]:
    """The usual claim: 1.3B decoder on 4 nodes of 8, one node as baseline."""
    if site.device != "cuda" or site.nodes[:1] != (8,):
        return []
    case = site.case("fsdp/decoder-1b3", Mode.STRONG, global_batch=128, precision="autocast")
    worlds = [n for n in (8, 16, 32) if n <= site.world_size]
    metrics, shape = ("speedup", "efficiency"), site.shape
    return [
        ladder(
            case, worlds, baselines=("one_node",), metrics=metrics, shape=shape, protocol=ON_GPUS
        )
    ]


def claim_memory(site: Site) -> list[Plan]:
    """The usual claim: memory halved by checkpointing, down by 90 % with sharding over 8."""
    if site.device != "cuda":
        return []
    base = site.case("ddp/decoder-350m")
    plans = [versus(base, replace(base, checkpoint=True), ("memory_saved",))]
    if site.world_size == 8:
        sharded = replace(site.case("fsdp/decoder-350m"), checkpoint=True)
        plans.append(versus(base, sharded, ("memory_saved",)))
    return plans


#: Schedules of a pipeline, and what each is there to show.
SCHEDULES = ("gpipe", "1f1b", "interleaved", "looped_bfs", "interleaved_zb", "zbv", "dualpipev")


def schedules(site: Site) -> list[Plan]:
    """Every schedule at 4 stages on the paced stand-in, and GPipe with a single micro-batch: the
    bubble measured and ideal, memory, step.
    """
    here = site.cpu(4)

    def case(schedule: str, micro: int) -> CaseSpec:
        knobs = {"pipeline.schedule": schedule, "pipeline.microbatches": micro}
        return here.case("pipeline/paced-small", Mode.WEAK, knobs=knobs)

    cases = {"one micro-batch": case("gpipe", 1), **{s: case(s, 8) for s in SCHEDULES}}
    metrics = ("step_s", "throughput_ratio", "bubble_share", "peak_bytes")
    return [beside("pipeline schedules", cases, metrics, protocol=PACED)]


def schedule_memory(site: Site) -> list[Plan]:
    """1F1B keeps as many micro-batches as there are stages, GPipe all of them."""
    here = site if site.world_size >= 4 else site.cpu(4)
    model = "decoder-1b3" if site.device == "cuda" else "decoder-mini"

    def case(schedule: str) -> CaseSpec:
        knobs = {"pipeline.schedule": schedule, "pipeline.microbatches": 16}
        return here.case(f"pipeline/{model}", Mode.WEAK, micro_batch=8, knobs=knobs)

    protocol = Protocol(steps=8, cut=2) if here.device == "cpu" else ON_GPUS
    return [versus(case("gpipe"), case("1f1b"), ("memory_saved",), protocol=protocol)]


def variants(site: Site) -> list[Plan]:
    """Ways to be data parallel on one model: bytes, memory, step."""
    here = site if site.world_size > 1 else site.cpu(2)
    model = "decoder-1b3" if site.device == "cuda" else "mlp-wide"

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        return here.case(f"{strategy}/{model}", Mode.WEAK, knobs=knobs)

    cases = {
        "ddp": case("ddp"),
        "ddp, a tensor at a time": case("ddp_naive"),
        "ddp, optimizer in backward": case("ddp", **{"ddp.overlap_optimizer": True}),
        "replicate": case("replicate"),
        "ZeRO-1": case("zero1"),
        "ZeRO-2": case("fsdp", **{"fsdp.reshard": False}),
        "ZeRO-3": case("fsdp"),
        "ZeRO-3 over all-to-all": case("fsdp", **{"fsdp.scatter": "all_to_all"}),
        "FSDP1": case("fsdp1"),
    }
    metrics = ("step_s", "throughput_ratio", "sent_bytes", "peak_bytes")
    return [beside("data parallel", cases, metrics, protocol=protocol_for(site))]


def batches(site: Site) -> list[Plan]:
    """What is done with a batch besides training on it, beside plain DDP on even samples."""
    here = site if site.world_size > 1 else site.cpu(2)
    size = "124m" if site.device == "cuda" else "mini"

    def case(name: str, **fields: Any) -> CaseSpec:
        return here.case(f"{name}-{size}", Mode.WEAK, **fields)

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


def roles(site: Site) -> list[Plan]:
    """Actors and learners on the paced stand-in, beside all ranks as learners."""
    here = site.cpu(4)

    def case(strategy: str, passes: int = 1) -> CaseSpec:
        knobs = {f"{strategy}.passes": passes} if passes > 1 else {}
        return here.case(f"{strategy}/paced-small", Mode.WEAK, knobs=knobs)

    cases = {
        "all learn": case("ddp"),
        "half act": case("actor_learner"),
        "half act, 4 passes": case("actor_learner", 4),
    }
    return [beside("roles", cases, ("step_s", "throughput_ratio", "sent_bytes"), protocol=PACED)]


def widths(site: Site) -> list[Plan]:
    """Ways to cut a model's layers or its sequence, beside fully sharded data parallel."""
    here = site if site.world_size > 1 else site.cpu(2)
    model = "decoder-1b3" if site.device == "cuda" else "decoder-mini"

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        own = {f"{strategy}.{name}": value for name, value in knobs.items()}
        return here.case(f"{strategy}/{model}", Mode.WEAK, precision=precision, knobs=own)

    precision = Precision.BF16 if site.device == "cuda" else Precision.FP32
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
    """A mixture of experts, replicated and shared out, with one and two experts a token."""
    here = site if site.world_size > 1 else site.cpu(2)
    model = "moe-243m" if site.device == "cuda" else "moe-small"

    def case(strategy: str, **knobs: Any) -> CaseSpec:
        return here.case(f"{strategy}/{model}", Mode.WEAK, knobs=knobs)

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
    """Two and three dimensions at once, on 4 and 8 ranks; on 8 GPUs TP 4 x PP 2."""
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


def learns(strategy: str, **knobs: Any) -> Recipe:
    """A strategy that trains apart for a while, beside DDP and beside no communication."""

    def recipe(site: Site) -> list[Plan]:
        here = site if site.world_size > 1 else site.cpu(2)
        model = GPU_MODEL if site.device == "cuda" else "decoder-nano"
        own = {f"{strategy}.{name}": value for name, value in knobs.items()}
        return [learning(here.case(f"{strategy}/{model}", Mode.WEAK, knobs=own), "ddp")]

    return recipe
