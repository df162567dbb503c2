"""Recipes of the shipped suites: functions that return the plans for a site.

The thresholds are in thresholds.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from harness import (
    ON_GPUS,
    PACED,
    REAL,
    CaseSpec,
    Fault,
    FaultScenario,
    Mode,
    Plan,
    Precision,
    Protocol,
    Recipe,
    Site,
    beside,
    compared,
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

#: Models by device: a step of the first takes milliseconds on one core; the second can fill a GPU.
CPU_MODEL, GPU_MODEL = "decoder-tiny", "decoder-350m"
#: The precision of training on GPUs. fp32 would use a fifteenth of the rate of their tensor cores.
AS_TRAINED: dict[str, Any] = dict(precision=Precision.AUTOCAST)
#: Transformer blocks are compiled on GPUs that can hold a model of a realistic size.
COMPILED: dict[str, Any] = dict(compiled="inductor")
#: Selective activation checkpointing: results of matrix products are kept, and all other
#: activations are computed again in the backward pass.
SELECTIVE: dict[str, Any] = dict(checkpoint=True, selective=True)
Sized: TypeAlias = Sequence[tuple[int, str, dict[str, Any]]]
#: Models for data parallelism as (least GPU memory in GiB, model, fields of the case). They are so
#: large that a step takes a tenth of a second or more.
DATA_PARALLEL: Sized = (
    (0, "decoder-nano", {}),
    (14, "decoder-124m", dict(seq_len=1024, micro_batch=8, **COMPILED)),
    (22, "decoder-124m", dict(seq_len=1024, micro_batch=16, **COMPILED)),
    (24, "decoder-350m", dict(seq_len=2048, micro_batch=4, **COMPILED)),
    (40, "decoder-350m", dict(seq_len=2048, micro_batch=8, **COMPILED)),
    (140, "decoder-350m", dict(seq_len=2048, micro_batch=16, **COMPILED)),
)
#: The models that each strategy trains on GPUs, in the same form. Sharded and pipelined models have
#: a size that needs several GPUs. Activations are computed again only if they do not fit.
#: Compressors train the same models as DDP, so their sweeps have the same baseline. The first model
#: of each strategy tests the mechanics only, because its step is too short to fill a GPU.
ON_GPU: Mapping[str, Sized] = {
    "ddp": DATA_PARALLEL,
    "compressed": DATA_PARALLEL,
    "fsdp": (
        (0, "decoder-nano", {}),
        (15, "decoder-350m", dict(seq_len=2048, micro_batch=2, **COMPILED)),
        (24, "decoder-350m", dict(seq_len=2048, micro_batch=4, **COMPILED)),
        (40, "decoder-1b3", dict(seq_len=2048, micro_batch=2, **COMPILED)),
        (48, "decoder-1b3", dict(seq_len=2048, micro_batch=4, **COMPILED)),
        (140, "decoder-1b3", dict(seq_len=2048, micro_batch=8, **COMPILED)),
    ),
    "pipeline": (
        (0, "decoder-nano", {}),
        (15, "decoder-124m", dict(seq_len=1024, checkpoint=True, **COMPILED)),
        (32, "decoder-350m", dict(seq_len=2048, checkpoint=True, **COMPILED)),
        (40, "decoder-1b2", dict(seq_len=2048, checkpoint=True, **COMPILED)),
        (80, "decoder-1b2", dict(seq_len=512, **COMPILED)),
    ),
    "strong": (
        (0, "decoder-nano", dict(global_batch=16)),
        (14, "decoder-124m", dict(seq_len=1024, global_batch=8, **COMPILED)),
        (22, "decoder-124m", dict(seq_len=1024, global_batch=16, **COMPILED)),
        (24, "decoder-350m", dict(seq_len=2048, global_batch=8, checkpoint=True, **COMPILED)),
        (40, "decoder-350m", dict(seq_len=2048, global_batch=8, **COMPILED)),
        (80, "decoder-350m", dict(seq_len=2048, global_batch=16, **COMPILED)),
    ),
}
#: The least GPU memory in GiB, and the fields of the case, for a model that one GPU cannot train.
#: It is sharded over half a node and over a whole node.
LARGE_GIB, LARGE = 80, dict(seq_len=4096, micro_batch=2, **SELECTIVE, **COMPILED)
#: Further fields by strategy. Pipeline stages of torch do not support autocast, so pipelines train
#: in bf16. FSDP gathers parameters in bf16.
OWN: Mapping[str, dict[str, Any]] = {
    "pipeline": dict(precision=Precision.BF16),
    "fsdp": dict(knobs={"fsdp.mixed": True}),
}
#: The assumed memory of a GPU, in GiB, if it is unknown.
USUAL_GIB = 80
#: Larger systems (nodes, GPUs per node) for which scaling sweeps on GPUs predict the efficiency.
#: The predictions are recorded, but never judged.
FORESEEN = {"ddp": (64, 8), "fsdp": (64, 8)}
#: The metrics of the scaling sweep of each strategy that is not judged by efficiency alone.
METRICS = {"pipeline": ("efficiency", "efficiency_of_ideal")}
#: The baseline of a scaling sweep on several GPUs, by strategy. Sharded training is compared with
#: the same wrapped training on one GPU. The cost of DDP's wrapper is measured on sites with one
#: GPU.
ON_GPUS_AGAINST = {"ddp": ("plain",), "fsdp": ("wrapped",), "pipeline": ("plain",)}


def trained(strategy: str, site: Site, mode: Mode, **fields: Any) -> CaseSpec:
    """Return the case that a strategy trains on the site's device."""
    model, more = CPU_MODEL, dict[str, Any]()
    if site.device == "cuda":
        family = strategy.partition(":")[0]
        model, sized = sized_for(family, site)
        more = {**AS_TRAINED, **sized, **OWN.get(family, {})}
    return site.case(f"{strategy}/{model}", mode, **{**more, **fields})


def sized_for(family: str, site: Site) -> tuple[str, dict[str, Any]]:
    """Return the largest model for the site's GPU memory, and fields for its sequence and batch."""
    room = site.gpu_memory_gib or USUAL_GIB
    _, model, fields = max((row for row in ON_GPU[family] if row[0] <= room), key=lambda r: r[0])
    return model, {name: fields[name] for name in fields if site.compiles or name not in COMPILED}


def protocol_for(site: Site) -> Protocol:
    """Return a protocol with windows in steps on CPUs, or in seconds on GPUs.

    The clocks of a GPU settle only after seconds of load.
    """
    return ON_GPUS if site.device == "cuda" else REAL


def weak(strategy: str, *, wrapped: bool = True, **fields: Any) -> Recipe:
    """Return a recipe for weak scaling over the world sizes of one node, with real compute.

    If ``wrapped`` is False, the cost of the strategy on a single rank is not measured.
    """

    def recipe(site: Site) -> list[Plan]:
        if site.device == "cuda":
            return _on_gpus(strategy, site, fields)
        return [
            ladder(
                trained(strategy, site, Mode.WEAK, **fields),
                site.worlds if wrapped else [n for n in site.worlds if n > 1] or [1],
                shape=site.shape,
                baselines=("plain", "wrapped") if wrapped else ("plain",),
                metrics=METRICS.get(strategy, ("efficiency",)),
                protocol=protocol_for(site),
            )
        ]

    return recipe


def _on_gpus(strategy: str, site: Site, fields: Mapping[str, Any]) -> list[Plan]:
    """Return the plan of a weak scaling sweep on the GPUs of one node.

    Only its largest world is judged. The recipe ``across`` measures worlds of several nodes. On a
    single GPU, only DDP has a plan, which measures its wrapper and compiled blocks.
    """
    case = trained(strategy, site, Mode.WEAK, **fields).at(site.nodes[0])
    if site.nodes[0] == 1:
        return _on_one_gpu(case, site) if strategy == "ddp" else []
    plan = ladder(
        case,
        [n for n in rungs(site.nodes[0]) if n > 1],
        baselines=ON_GPUS_AGAINST[strategy],
        metrics=(*METRICS.get(strategy, ("efficiency",)), "attainment"),
        protocol=ON_GPUS,
        predict=FORESEEN.get(strategy),
        largest_only=not site.every_rung,
    )
    return [plan]


def _on_one_gpu(case: CaseSpec, site: Site) -> list[Plan]:
    """Compare DDP on one rank with the plain model, and compiled blocks with eager ones."""
    plan = ladder(case, [1], baselines=("plain",), protocol=ON_GPUS)
    if case.compiled == "no":
        return [plan]
    return [compared(plan, "eager", replace(case, compiled="no"), ("throughput_ratio",))]


#: All compressors. A test compares this list with the compressors that are shipped.
CODECS = (
    "bf16", "countsketch", "dgc", "efsign", "fp16", "fp8", "int8", "natural", "onebit",
    "onebit_adam", "powersgd", "qsgd", "randomk", "signsgd", "terngrad", "threshold", "topk",
)  # fmt: skip


def codecs(site: Site) -> list[Plan]:
    """Compare all compressors with dense training in the same blocks: throughput and sent bytes."""
    here = site if site.world_size > 1 else site.cpu(2)
    cases = {"dense": trained("ddp", here, Mode.WEAK)}
    if here.device == "cuda":
        model, sized = sized_for("compressed", here)
        cases = {"dense": here.case(f"ddp/{model}", Mode.WEAK, **{**AS_TRAINED, **sized})}
    cases |= {codec: trained(f"compressed:{codec}", here, Mode.WEAK) for codec in CODECS}
    metrics = ("throughput_ratio", "sent_bytes")
    return [beside("every codec", cases, metrics, protocol=protocol_for(here))]


def topk(site: Site) -> list[Plan]:
    """Measure top-k gradients: weak scaling on CPUs, or a comparison with DDP on a node of GPUs."""
    if site.device != "cuda":
        return weak("compressed:topk", wrapped=False)(site)
    if site.nodes[0] == 1:
        return []
    dense, compressed = (
        trained(strategy, site, Mode.WEAK).at(site.nodes[0])
        for strategy in ("ddp", "compressed:topk")
    )
    return [versus(dense, compressed, ("throughput_ratio",), protocol=ON_GPUS)]


def large(model: str) -> Recipe:
    """Return a recipe for a model that does not fit on one GPU: weak scaling from half a node to a
    whole node.
    """

    def recipe(site: Site) -> list[Plan]:
        room, ranks = site.gpu_memory_gib or USUAL_GIB, min(site.nodes)
        if site.device != "cuda" or room < LARGE_GIB or ranks < 8:
            return []
        fields = {**AS_TRAINED, **LARGE, **OWN["fsdp"]}
        if not site.compiles:
            fields = {name: fields[name] for name in fields if name not in COMPILED}
        return [
            ladder(
                site.case(f"fsdp/{model}", Mode.WEAK, **fields).at(ranks),
                (ranks // 2, ranks),
                baselines=("smallest_fit",),
                protocol=protocol_for(site),
            )
        ]

    return recipe


def filled() -> Recipe:
    """Return a recipe for weak scaling of pipelines with at least two micro-batches per stage."""

    def recipe(site: Site) -> list[Plan]:
        ranks = site.nodes[0] if site.device == "cuda" else site.world_size
        count = max(4, 2 * ranks)
        more = {} if count == 4 else dict(micro_batch=count)
        knobs: dict[str, Any] = {"pipeline.microbatches": count}
        if site.device == "cuda":  # GPipe would keep the activations of all micro-batches
            knobs["pipeline.schedule"] = "1f1b"
        return weak("pipeline", knobs=knobs, **more)(site)

    return recipe


def strong(strategy: str, *, global_batch: int, eager: bool = False) -> Recipe:
    """Return a recipe for strong scaling over the world sizes that divide the global batch.

    On GPUs the batch depends on the GPU's memory, and activations are computed again if necessary,
    because the whole batch has to fit on the single GPU of the baseline. With ``eager`` the largest
    world is also measured without compiled blocks, because a slower step hides more communication.
    """

    def recipe(site: Site) -> list[Plan]:
        case, worlds = site.case(f"{strategy}/{CPU_MODEL}", Mode.STRONG), site.worlds
        case = replace(case, global_batch=global_batch)
        on_gpus = site.device == "cuda"
        if on_gpus:
            model, sized = sized_for("strong", site)
            case = site.case(f"{strategy}/{model}", Mode.STRONG, **AS_TRAINED, **sized)
            case, worlds = case.at(site.nodes[0]), rungs(site.nodes[0])
        several = [n for n in strong_worlds(case, worlds) if n > 1]
        if on_gpus and not several:
            return []
        plan = ladder(
            case,
            several or [1],
            baselines=("plain",),
            metrics=METRICS.get(strategy, ("efficiency",)),
            protocol=protocol_for(site),
            largest_only=on_gpus and not site.every_rung,
        )
        if eager and case.compiled != "no":
            plan = compared(plan, "eager", replace(case, compiled="no"), ("throughput_ratio",))
        return [plan]

    return recipe


def paced(strategy: str, largest: int = 4, smallest: int = 2, **fields: Any) -> Recipe:
    """Return a recipe for weak scaling with simulated compute and real communication.

    The model waits instead of computing. The recipe has no plan on GPUs, which compute themselves.
    """

    def recipe(site: Site) -> list[Plan]:
        if site.device == "cuda":
            return []
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
    """Return a recipe that tests the measurement itself, with simulated compute.

    Steps follow a schedule that gives a known efficiency. ``plant`` lists it as
    ``ranks:efficiency``.
    """
    knobs: dict[str, Any] = {"paced.mode": "schedule", "paced.plant": plant}
    knobs |= {f"paced.{name}": value for name, value in knob.items()}

    def recipe(site: Site) -> list[Plan]:
        here = site.cpu(largest)
        case = here.case(f"{strategy}/paced-small", Mode.WEAK, knobs=knobs)
        return [ladder(case, (largest,), protocol=PACED, baselines=("plain",))]

    return recipe


def same(largest: int = 2) -> Recipe:
    """Return a recipe that compares simulated compute with itself (A/A).

    A threshold of exactly 1.0 must give INCONCLUSIVE.
    """
    knobs = {"paced.mode": "schedule"}

    def recipe(site: Site) -> list[Plan]:
        case = site.cpu(largest).case("ddp/paced-small", knobs=knobs)
        return [like(case, protocol=PACED)]

    return recipe


def spread(strategy: str) -> Recipe:
    """Return a recipe that compares placements: as many ranks as one node has, on one node and
    spread evenly over several nodes.
    """

    def recipe(site: Site) -> list[Plan]:
        ranks = min(site.nodes)
        counts = [n for n in range(2, len(site.nodes) + 1) if ranks % n == 0]
        if not counts:
            return []
        layouts = [(ranks,), *((ranks // n,) * n for n in counts)]
        return [shapes(trained(strategy, site, Mode.WEAK), layouts)]

    return recipe


def across(strategy: str) -> Recipe:
    """Return a recipe for weak scaling over whole nodes, with one node as baseline.

    For example 8, 16 and 32 ranks on 1, 2 and 4 nodes.
    """

    def recipe(site: Site) -> list[Plan]:
        if len(site.nodes) < 2:
            return []
        case = trained(strategy, site, Mode.WEAK)
        worlds = [sum(site.nodes[:n]) for n in rungs(len(site.nodes)) if n > 1]
        return [
            ladder(
                case,
                worlds,
                shape=site.shape,
                baselines=("one_node",),
                metrics=METRICS.get(strategy, ("efficiency",)),
                protocol=protocol_for(site),
                largest_only=site.device == "cuda" and not site.every_rung,
            )
        ]

    return recipe


def masked(model: str = "decoder-nano") -> Recipe:
    """Return a recipe for a negative control: a compressor that claims top-k but sends dense
    gradients. The correctness check must detect it.
    """

    def recipe(site: Site) -> list[Plan]:
        return [control(site.cpu(2).case(f"compressed:masked_topk/{model}"))]

    return recipe


def broken(strategy: str) -> Callable[[Site], list[FaultScenario]]:
    """Return a recipe for trainings that crash, hang or lose an agent or a node, and then resume.

    On a single node they also resume with another number of ranks.
    """

    def recipe(site: Site) -> list[FaultScenario]:
        if site.world_size < 2:
            return []
        on_gpus = site.device == "cuda"
        model = GPU_MODEL if on_gpus else "decoder-nano"
        case = site.case(f"{strategy}/{model}", **(AS_TRAINED if on_gpus else {}))
        faults = [Fault.KILL, Fault.HANG, *map(Fault, site.faults)]
        courses = [FaultScenario(case=case, fault=fault) for fault in faults]
        courses.append(FaultScenario(case=case, fault=Fault.KILL, asynchronous=True))
        return [*courses, *(resharded(case) if len(site.nodes) == 1 else ())]

    return recipe


#: Knobs of the twin of the speedup claim: its steps follow a schedule with these efficiencies
#: (``ranks:efficiency``), so the correct result is known.
TWIN: Mapping[str, Any] = {"paced.mode": "schedule", "paced.plant": "2:0.985,4:0.96"}


def claim_175m_b64(site: Site) -> list[Plan]:
    """Measure a common claim: strong scaling of a 175M decoder with global batch 64, relative to
    one device.

    Without GPUs the twin of the claim is measured in the same way: simulated compute whose correct
    result is known.
    """
    on_gpus = site.device == "cuda"
    here = site if on_gpus else site.cpu(4)
    case = (
        site.case("ddp/decoder-175m", Mode.STRONG, global_batch=64, precision="autocast")
        if on_gpus
        else here.case("ddp/paced-small", Mode.STRONG, global_batch=64, knobs=TWIN)
    )
    worlds = [n for n in strong_worlds(case, here.worlds) if n in (1, 2, 4, 8)]
    metrics = ("speedup", "efficiency")
    protocol = ON_GPUS if on_gpus else PACED
    return [ladder(case, worlds, baselines=("plain",), metrics=metrics, protocol=protocol)]


def claim_1b3_4x8(site: Site) -> list[Plan]:
    """Measure a common claim: a 1.3B decoder on 4 nodes of 8 GPUs, relative to one node.

    Without GPUs, its twin with simulated compute runs on (emulated) nodes with CPU ranks.
    """
    on_gpus = site.device == "cuda"
    ranks = site.nodes[0]
    if len(set(site.nodes)) > 1 or (ranks != 8 if on_gpus else len(site.nodes) < 2):
        return []
    case = (
        site.case("fsdp/decoder-1b3", Mode.STRONG, global_batch=128, precision="autocast")
        if on_gpus
        else site.case("fsdp/paced-small", Mode.STRONG, global_batch=64)
    )
    worlds = [n * ranks for n in (1, 2, 4) if n <= len(site.nodes)]
    return [
        ladder(
            case,
            worlds,
            baselines=("one_node",),
            metrics=("speedup", "efficiency"),
            shape=site.shape,
            protocol=ON_GPUS if on_gpus else PACED,
        )
    ]


def claim_memory(site: Site) -> list[Plan]:
    """Measure a common claim: checkpointing halves the memory, and sharding over 8 ranks in
    addition saves 90 %.

    With fewer ranks the saving by sharding is recorded but not judged. Without GPUs, the twin of
    the claim is a model that CPUs can train.
    """
    on_gpus = site.device == "cuda"
    here = site if on_gpus else site.cpu(2)
    model = "decoder-350m" if on_gpus else "decoder-base"
    usual = AS_TRAINED if on_gpus else {}
    base = here.case(f"ddp/{model}", **usual)
    plans = [versus(base, replace(base, checkpoint=True), ("memory_saved",))]
    if here.world_size > 1:
        sharded = here.case(f"fsdp/{model}", checkpoint=True, **usual)
        plans.append(versus(base, sharded, ("memory_saved",)))
    return plans


def learns(strategy: str, **knobs: Any) -> Recipe:
    """Return a recipe for a strategy whose ranks train separately between exchanges.

    It is compared with DDP and with training without communication.
    """

    def recipe(site: Site) -> list[Plan]:
        here = site if site.world_size > 1 else site.cpu(2)
        model = GPU_MODEL if site.device == "cuda" else "decoder-nano"
        own = {f"{strategy}.{name}": value for name, value in knobs.items()}
        usual = AS_TRAINED if here.device == "cuda" else {}
        return [learning(here.case(f"{strategy}/{model}", Mode.WEAK, knobs=own, **usual), "ddp")]

    return recipe
