"""Recipes that compare settings: framework defaults, inputs, precisions, kernels, checkpointing.

All arms of a plan train the same model, so each row shows the effect of one setting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness import ON_GPUS, CaseSpec, Mode, Plan, Precision, Protocol, Site, beside, versus

#: The precision on GPUs. Settings are compared in the usual precision of training there, not in
#: fp32.
_AS_TRAINED: dict[str, Any] = dict(precision=Precision.AUTOCAST)
#: A metric of fp16 only, because only a loss scaler skips steps.
SKIPPED = "skipped_steps"
METRICS = ("step_s", "throughput_ratio", "peak_bytes")


def _site(site: Site, ranks: int = 2) -> Site:
    """Return the site, or a site of CPU ranks if the site has fewer than ``ranks``."""
    return site if site.world_size >= ranks else site.cpu(ranks)


def _alone(site: Site) -> Site:
    """Return a site for settings whose effect a single GPU shows as well as two."""
    return _site(site, 1 if site.device == "cuda" else 2)


def _model(site: Site) -> str:
    return "decoder-350m" if site.device == "cuda" else "decoder-mini"


def _plan(site: Site, name: str, cases: dict[str, CaseSpec], *more: str) -> list[Plan]:
    protocol = ON_GPUS if site.device == "cuda" else Protocol(steps=24, cut=8)
    return [beside(name, cases, (*METRICS, *more), protocol=protocol)]


def published(site: Site) -> list[Plan]:
    """Compare common defaults of frameworks with DDP's.

    They are buckets of 25 MB (PyTorch) and of 5e8 elements (DeepSpeed), compression to a tenth of
    the gradient or to values above 0.01, 4 accumulated micro-batches, and a learning rate that
    grows linearly with batches above 32.
    """
    here = _site(site)

    def case(strategy: str, **fields: Any) -> CaseSpec:
        usual = _AS_TRAINED if here.device == "cuda" else {}
        return here.case(f"{strategy}/{_model(here)}", Mode.WEAK, **usual, **fields)

    cases = {
        "25 MB buckets": case("ddp"),
        "buckets of 5e8 elements": case("ddp", knobs={"ddp.bucket_cap_mb": 5e8 * 4 / 2**20}),
        "a tenth of the gradient": case("compressed:topk", knobs={"topk.rho": 0.1}),
        "what exceeds 0.01": case("compressed:threshold", knobs={"threshold.threshold": 0.01}),
        "4 micro-batches": case("ddp", accumulate=4),
        "base batch 32": case("ddp", learning_rate="linear", base_batch=32, warm_up=4),
    }
    return _plan(here, "usual defaults", cases, "sent_bytes")


def published_stages(site: Site) -> list[Plan]:
    """Compare common defaults that need four ranks: 8 micro-batches in 4 pipeline stages with one
    micro-batch, and 2 experts per token with one.
    """
    four = _site(site, 4)
    routed = {f"top {top}": four.case("expert_parallel/moe-nano", knobs={"moe.top": top})
              for top in (1, 2)}  # fmt: skip
    staged = {
        f"{micro} micro-batches": four.case(
            "pipeline/paced-small", knobs={"pipeline.microbatches": micro}
        )
        for micro in (1, 8)
    }
    return [
        *_plan(four, "4 stages", staged, "bubble_share"),
        *_plan(four, "experts a token", routed, "dropped_tokens"),
    ]


def inputs(site: Site) -> list[Plan]:
    """Compare sources of batches: on the device, made in or before the step, read from files with
    up to two workers.
    """
    here = _alone(site)

    def case(data: str, **knobs: Any) -> CaseSpec:
        return here.case(
            f"ddp/{_model(here)}", data=data, knobs={f"{data}.{k}": v for k, v in knobs.items()}
        )

    cases = {
        "resident": case("resident"),
        "made in the step": case("loaded"),
        "made ahead": case("prefetched"),
        "files, no worker": case("files", workers=0, decode_ms=1.0),
        "files, one worker": case("files", workers=1, decode_ms=1.0),
        "files, two workers": case("files", workers=2, decode_ms=1.0),
        "files, cold": case("files", workers=2, decode_ms=1.0, cold=True),
    }
    return _plan(here, "inputs", cases, "data_share")


def precisions(site: Site) -> list[Plan]:
    """Compare precisions: fp32, TF32 (on GPUs), bf16, autocast to bf16 or to fp16 with loss
    scaling, and 8 bits.
    """
    here = _alone(site)
    base = here.case(f"ddp/{_model(here)}")
    cases = {"fp32": base}
    if here.device == "cuda":
        cases["TF32"] = replace(base, tf32=True)
    cases |= {str(p): replace(base, precision=p) for p in Precision if p is not Precision.FP32}
    (plan,) = _plan(here, "precisions", cases, SKIPPED)
    scaled = {a.name for a in plan.arms if a.case.precision is Precision.FP16}
    kept = tuple(c for c in plan.contrasts if c.metric != SKIPPED or c.subject in scaled)
    return [replace(plan, contrasts=kept)]


def kernels(site: Site) -> list[Plan]:
    """Compare attention kernels, implementations of the optimizer step, and compiled blocks."""
    here = _alone(site)
    cuda = here.device == "cuda"
    base = here.case(f"ddp/{_model(here)}", **(_AS_TRAINED if cuda else {}))
    cases = {"as torch chooses": base}
    for kernel in ("math", "flash", *(("efficient", "cudnn") if cuda else ())):
        cases[f"attention {kernel}"] = replace(base, attention=kernel)
    for way in ("loop", "foreach", "fused"):
        cases[f"stepping {way}"] = replace(base, stepping=way)
    cases["compiled"] = replace(base, compiled="inductor")
    if cuda:
        cases["priority stream"] = replace(base, priority_stream=True)
    return _plan(here, "kernels", cases)


def backends(site: Site) -> list[Plan]:
    """Compare algorithms, protocols and channels of NCCL with its own choice, on several GPUs.

    The correctness check reads from NCCL's log what was used; an arm that used something else than
    requested is an ERROR. There is no plan for gloo, which has only one algorithm per collective.
    """
    if site.device != "cuda" or site.world_size < 2:
        return []
    base = site.case(f"ddp/{_model(site)}", **_AS_TRAINED)
    sharded = site.case(f"fsdp/{_model(site)}", **_AS_TRAINED)

    def told(case: CaseSpec, **variables: str) -> CaseSpec:
        return replace(case, environment={**(case.environment or {}), **variables})

    by_name = {"NCCL chooses": base}
    # NCCL supports tree and NVLS for all-reduce only, and PAT for all-gather and reduce-scatter
    # only.
    by_name |= {
        name: told(base, NCCL_ALGO=f"allreduce:{name}") for name in ("ring", "tree", "nvls")
    }
    by_name |= {name: told(base, NCCL_PROTO=name) for name in ("LL", "LL128", "Simple")}
    by_name |= {f"{n} channels": told(base, NCCL_MAX_NCHANNELS=str(n)) for n in (1, 4, 16)}
    by_name["no P2P"] = told(base, NCCL_P2P_DISABLE="1")
    if len(site.nodes) > 1:
        by_name["no GDR"] = told(base, NCCL_NET_GDR_LEVEL="LOC")
    gathers = {
        "NCCL chooses": sharded,
        "ring": told(sharded, NCCL_ALGO="allgather:ring;reducescatter:ring"),
        "pat": told(sharded, NCCL_ALGO="allgather:pat;reducescatter:pat"),
    }
    return [
        *_plan(site, "NCCL settings, all-reduce", by_name, "exposed_comm_share"),
        *_plan(site, "NCCL settings, all-gather", gathers, "exposed_comm_share"),
    ]


def checkpoints(site: Site) -> list[Plan]:
    """Measure how much memory activation checkpointing saves, and how much longer a step takes."""
    here = _alone(site)
    batch = None if here.device == "cuda" else 32
    usual = _AS_TRAINED if here.device == "cuda" else {}
    base = here.case(f"ddp/{_model(here)}", micro_batch=batch, **usual)
    metrics = ("memory_saved", "step_time_ratio")
    protocol = ON_GPUS if here.device == "cuda" else Protocol(steps=10, cut=2)
    kinds: list[dict[str, Any]] = [
        dict(checkpoint=True), dict(checkpoint=True, checkpoint_every=2),
        dict(checkpoint=True, selective=True),
    ]  # fmt: skip
    kinds += [dict(offload=True)] if here.device == "cuda" else []
    return [versus(base, replace(base, **kind), metrics, protocol=protocol) for kind in kinds]
