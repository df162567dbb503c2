"""Descriptions of cases before they run: facts, expectations and references.

The models are built on the meta device, so nothing is allocated or launched.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from harness.base.documents import Json
from harness.base.errors import NotComparableError
from harness.cases import (
    Batching,
    CaseSpec,
    Compiled,
    Device,
    Dim,
    Passes,
    Precision,
    batching,
    digest,
    twins,
)
from harness.cases.limits import ROUNDED, loss_limit, rounding
from harness.record import Described, Expected, ModelFacts, Reference, Work
from harness.training import optimizers
from harness.training.context import Loaded, build_model, make_batch, parts, tensors_of
from harness.training.data import Batch
from harness.training.parallel import traffic
from harness.training.parallel.depth import likeness
from harness.training.trainer import constant, parameter_bytes, trained_bytes, training_bytes
from harness.training.tuning.tuned import refuse, untuned
from harness.training.work import (
    WorkBySamples,
    again_flops,
    counted_flops,
    flops,
    kept_bytes,
    step_work,
)

#: Largest allowed ratio of the FLOPs that a model states to the FLOPs that torch counts. It exceeds
#: 1 because torch counts only a part of the attention kernels.
FLOPS_SLACK = 1.2


#: Fields of a case that select how it is computed. They may change rounding and memory. They are
#: therefore part of the keys under which cases reuse each other's results.
HOW = ("attention", "compiled", "stepping", "tf32", "checkpoint_every", "selective", "offload")


def case_batching(loaded: Loaded, case: CaseSpec) -> Batching:
    """Return how the case's global batch is divided among shards and accumulation steps."""
    return batching(case, loaded.size(case)["batch"], loaded.supports.mesh(case))


def describe(loaded: Loaded, case: CaseSpec) -> Described:
    """Return the facts and expectations of a case, or the reason why it is unsupported."""
    if reason := loaded.supports.misses(vars(loaded.model), case.precision):
        return Described(unsupported=reason)
    if loaded.input.INPUT.get("even") and hasattr(loaded.model, "RAGGED"):
        return Described(
            unsupported=f"data={case.data} needs samples of one length, but the model's differ"
        )
    if case.compiled is not Compiled.NO and not loaded.supports.compiles:
        return Described(unsupported=f"{case.strategy} does not support compiled blocks")
    try:
        facts, model = _checked_facts(loaded, case)
        expected = expect(loaded, case, model, facts)
        check_bound(loaded, case)
    except NotComparableError as error:
        return Described(not_comparable=error.what)
    except ValueError as error:
        return Described(unsupported=str(error))
    compared = reference(loaded, case, facts, model) if expected.repeatable else None
    if compared is not None and expected.casts:
        compared = replace(
            compared, key=digest([compared.key, "coarse"]), limit=ROUNDED, coarse=True
        )
    if compared is not None and expected.reorders:
        compared = replace(compared, limit=max(compared.limit, rounding(case)))
    twin = accepted_twin(loaded, case)
    on_gpu = _work(loaded, case, facts)
    return Described(facts=facts, expected=expected, reference=compared, twin=twin, work=on_gpu)


def accepted_twin(loaded: Loaded, case: CaseSpec) -> int:
    """Return the index of the first candidate for the case's twin that the strategy accepts.

    A twin is the same training run with a smaller model and batch (``cases/twins.py``). The last
    candidate is the case itself, which the strategy has already accepted.
    """
    most = getattr(loaded.strategy, "TWIN", {})
    less = twins.fewer(case.strategy, loaded.knobs(case), most)
    if (compressor := loaded.compressor(case)) is not None:
        most = getattr(compressor.module, "TWIN", {})
        less |= twins.fewer(compressor.name, compressor.knobs, most)
    candidates = list(twins.candidates(case, loaded.model.SIZES, less))
    accepted = (number for number, twin in enumerate(candidates) if _accepts(loaded, twin))
    return next(accepted, len(candidates) - 1)


def _accepts(loaded: Loaded, twin: CaseSpec) -> bool:
    """Return whether the strategy accepts this case (its ``expect`` raises no ValueError)."""
    key = digest([twin.model, dict(loaded.size(twin)), twin.precision, str(twin.phase)])
    key += f"+{optimizers.copies(twin)}"
    if key not in _TWINS:
        _TWINS[key] = model_facts(loaded, twin)
    facts, model = _TWINS[key]
    try:
        expect(loaded, twin, model, facts)
    except ValueError:
        return False
    return True


def _work(loaded: Loaded, case: CaseSpec, facts: ModelFacts) -> Work | None:
    """Return the FLOPs and moved bytes of a step on a GPU.

    Return None on a CPU, for simulated compute, if only forward passes run, and for a model that
    needs real data to run.
    """
    if case.device is not Device.CUDA or facts.step_s is not None or case.phase is Passes.FORWARD:
        return None
    samples = case_batching(loaded, case).largest
    model_work = _WORK.setdefault(_key(loaded, case) + f"+{case.optimizer}", WorkBySamples(loaded))
    once = replace(case, accumulate=1)
    try:
        work = model_work.of(samples, partial(step_work, loaded, once))
    except Exception:  # the model needs real data to run, so its work cannot be counted
        return None
    return replace(
        work,
        samples=work.samples * case.accumulate,
        products=tuple(
            replace(product, count=product.count * case.accumulate) for product in work.products
        ),
        moved_bytes=work.moved_bytes * case.accumulate,
    )


#: Cache of counted work. The key is made of the model, the fields ``HOW``, and the optimizer.
_WORK: dict[str, WorkBySamples] = {}


#: Cache of the facts and models of twins, which several cases share.
_TWINS: dict[str, tuple[ModelFacts, nn.Sequential]] = {}


#: Cache of model facts. The keys do not name the case's files, because a process describes only
#: cases of one set of files.
_KNOWN: dict[str, tuple[ModelFacts, nn.Sequential]] = {}


def _checked_facts(loaded: Loaded, case: CaseSpec) -> tuple[ModelFacts, nn.Sequential]:
    """Return the facts of a model, with the memory that a step keeps, and the model itself.

    Raise AssertionError if the model states too many FLOPs or tokens.
    """
    key = _key(loaded, case)
    if key not in _KNOWN:
        facts, model = model_facts(loaded, case)
        check_flops(loaded, case, facts)
        if case.phase is Passes.FORWARD:  # a block's output is freed when the next block is done
            largest = max(facts.block_bytes, default=facts.activation_bytes_per_sample)
            facts = replace(facts, activation_bytes_per_sample=largest, again_flops_per_sample=0.0)
            _KNOWN[key] = facts, model
            return _KNOWN[key]
        # If a model needs real data to run, the estimate from its blocks' outputs remains.
        with contextlib.suppress(Exception):
            bytes_kept = kept_bytes(loaded, case)
            facts = replace(
                facts,
                activation_bytes_per_sample=bytes_kept.per_sample,
                cast_bytes=bytes_kept.constant,
                block_bytes=bytes_kept.blocks,
                again_bytes=bytes_kept.again,
            )
        try:
            again: float | None = flops(loaded, case, partial(again_flops, case=case))
        except Exception:  # the model needs real data, as above
            again = None
        facts = replace(facts, again_flops_per_sample=again)
        _KNOWN[key] = facts, model
    return _KNOWN[key]


def _key(loaded: Loaded, case: CaseSpec) -> str:
    """Return a cache key of the model, its size, and how it is computed."""
    key = digest([case.model, dict(loaded.size(case)), case.precision, case.checkpoint])
    key += f"+{optimizers.copies(case)}"
    key += "".join(f"+{name}={case.series[name]}" for name in HOW if name in case.series)
    return f"{key}+{case.phase}"


def check_flops(loaded: Loaded, case: CaseSpec, facts: ModelFacts) -> None:
    """Raise AssertionError if a model states too many FLOPs or tokens.

    A model may state at most as many tokens as a sample has elements, and at most ``FLOPS_SLACK``
    times the FLOPs of its operators. Otherwise its MFU or its tokens/s would be too high. The
    FLOPs of forward and backward of one sample are counted on the meta device.
    """
    # The last dimension holds the features of one token, unless a sample is one vector.
    features = "float" in facts.input_dtype and len(facts.input_shape) > 1
    most = math.prod(facts.input_shape[:-1] if features else facts.input_shape)
    if facts.tokens_per_sample > most:
        raise AssertionError(
            f"{case.model}: tokens() states {facts.tokens_per_sample} tokens per sample, but a"
            f" sample has at most {most}"
        )
    if not facts.flops_per_sample or case.phase is Passes.FORWARD:
        return
    key = digest([case.model, dict(loaded.size(case))])
    if key not in _FLOPS:  # the FLOPs of the plain model do not depend on how it is computed
        plain = replace(untuned(case), checkpoint=False, precision=Precision.FP32)
        _FLOPS[key] = flops(loaded, plain, partial(_counted_flops, case=plain))
    counted = _FLOPS[key]
    stated = facts.flops_per_sample
    if stated > FLOPS_SLACK * counted:
        raise AssertionError(
            f"{case.model}: flops() states {stated:.4g} FLOPs per sample, but torch counts only"
            f" {counted:.4g} in the matrix products and convolutions of forward and backward"
        )


#: Cache of the counted FLOPs of a sample, by the model and its size.
_FLOPS: dict[str, float] = {}


def _counted_flops(loaded: Loaded, case: CaseSpec) -> float:
    """Count the FLOPs of forward and backward of one sample."""

    def count(device: torch.device, samples: int) -> float:
        batch = make_batch(loaded, case, torch.arange(samples), device)
        with device:
            model = build_model(loaded, untuned(case), seed=case.seed)
        step = lambda: loaded.model.loss(model(batch.inputs), batch.targets).backward()  # noqa: E731
        return counted_flops(step) / samples

    return without_values(count)


T = TypeVar("T")
#: The devices and numbers of samples with which a model is passed through, until one succeeds. The
#: meta device has no values, statistics over a batch need two samples, and some models decide by
#: values what they compute.
ATTEMPTS = (("meta", 1), ("meta", 2), ("cpu", 2))


def without_values(look: Callable[[torch.device, int], T]) -> T:
    """Return ``look(device, samples)`` from the first of ``ATTEMPTS`` that succeeds.

    Raise the error of the last one if none does: on a CPU it is the error of the model itself.
    Modules that torch.compile made run uncompiled, because a description counts their operators.
    """
    with torch.compiler.set_stance("force_eager"):
        for device, samples in ATTEMPTS[:-1]:
            with contextlib.suppress(Exception):
                return look(torch.device(device), samples)
        device, samples = ATTEMPTS[-1]
        return look(torch.device(device), samples)


def compiles_itself(model: nn.Module) -> bool:
    """Return whether the model's file compiled the model or one of its modules."""
    return any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        for module in model.modules()
    )


def check_bound(loaded: Loaded, case: CaseSpec) -> None:
    """Raise AssertionError if a compressor states nothing that a check could refute."""
    compressor = loaded.compressor(case)
    if compressor is None or hasattr(compressor.module, "LOSSLESS") or compressor.error_bound < 1:
        return
    if getattr(compressor.module, "CLAIM", ""):
        return  # no CLAIM is met by a compressor that sends nothing
    raise AssertionError(
        f"{compressor.name}: a compressor that sends nothing meets an ERROR_BOUND of 1 or more;"
        " state LOSSLESS (the knobs with which nothing is lost), a CLAIM, or a bound below 1"
    )


def reference(
    loaded: Loaded, case: CaseSpec, facts: ModelFacts, model: nn.Module
) -> Reference | None:
    """Return the reference run whose losses are compared with the losses of the case.

    Return None for a case without communication, because its training is incorrect on purpose.
    """
    cut = case_batching(loaded, case)
    supports = loaded.supports
    if not case.communicate:
        return None
    parts = loaded.knobs(case)[supports.parts] if supports.parts else case.accumulate
    mesh = supports.mesh(case)
    settings = [case.device, case.precision, case.optimizer, case.seed, case.checkpoint, case.data]
    settings += [case.phase] if case.phase is Passes.FORWARD else []
    settings += [case.setup] if case.setup else []  # other software may round differently
    compressor = loaded.compressor(case)
    encoding: list[Json] | None = None
    if compressor is not None:
        encoding = [compressor.name, dict(compressor.knobs)]
        encoding += [compressor.start] if compressor.start else []
    settable = ("clip", "lr", "learning_rate", "base_batch", "warm_up", *HOW)
    settings += [f"{name}={case.series[name]}" for name in settable if name in case.series]
    size = dict(loaded.size(case))
    ordered = supports.oracle == "micro_batched"
    doc = [case.model, size, settings, list(cut.micros), parts, ordered, encoding]
    apart = supports.oracle == "simulated"
    doc += [case.strategy, dict(loaded.knobs(case))] if apart else []
    if supports.buffers == "broadcast" and _changing_buffers(model):
        doc.append("buffers of rank 0")
    if (order := getattr(loaded.strategy, "order", None)) is not None:
        doc.append(list(order(loaded.knobs(case), mesh.size(Dim.PP))))
    return Reference(
        key=digest(doc),
        shards=1 if apart else cut.shards,  # one process simulates all ranks
        limit=loss_limit(case, mesh),
        memory_bytes=training_bytes(
            parameter_bytes(model), 1, facts, cut.largest * case.accumulate
        ),
    )


def expect(loaded: Loaded, case: CaseSpec, model: nn.Module, facts: ModelFacts) -> Expected:
    """Return what the strategy expects of the case, such as its traffic and memory.

    If the case has a compressor, the strategy receives it as an additional argument. Raise
    ValueError if the strategy or the optimizer refuses the case.
    """
    optimizers.check(case, loaded.supports.mesh(case), loaded.compressor(case))
    arguments = [case, model, case_batching(loaded, case), facts, loaded.knobs(case)]
    if (compressor := loaded.compressor(case)) is not None:
        arguments.append(compressor)
    with torch.device("meta"):
        expected = _expected(loaded, case, arguments)
    if not case.communicate:
        return replace(expected, sent_bytes=(0.0,) * case.world_size, payload_bytes={})
    if loaded.supports.buffers == "broadcast" and case.phase is not Passes.FORWARD:
        expected = _with_buffers(expected, model, case)
    # Under a wrapper torch compiles a module in other pieces, and it may lay parameters out in
    # another memory format. Both change the order of sums.
    laid_out = all(parameter.is_contiguous() for parameter in model.parameters())
    reorders = expected.reorders or compiles_itself(model) or not laid_out
    return replace(expected, reorders=reorders)


def _expected(loaded: Loaded, case: CaseSpec, arguments: Sequence[Any]) -> Expected:
    """Return what the strategy's ``expect`` returns.

    A shipped strategy may pass the model through the meta device, where it cannot run if it decides
    by values what it computes. Raise NotComparableError in this case.
    """
    try:
        expected: Expected = loaded.strategy.expect(*arguments)
    except (NotImplementedError, RuntimeError) as error:
        if not loaded.ships_strategy:
            raise
        message = str(error).splitlines()[0][:120]
        raise NotComparableError(
            f"{case.strategy} derives its traffic on the meta device, which has no values, and the"
            f" model does not run there ({message}). Choose another strategy"
        ) from error
    return expected


def _changing_buffers(model: nn.Module) -> bool:
    """Return whether a model has buffers that its forward passes may change."""
    return any(name not in constant(model) for name, _ in model.named_buffers())


def _with_buffers(expected: Expected, model: nn.Module, case: CaseSpec) -> Expected:
    """Add the traffic of broadcasting rank 0's buffers before each step to the expectation."""
    ignored = constant(model)
    buffers = [buffer for name, buffer in model.named_buffers() if name not in ignored]
    size = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
    n = case.world_size
    if not size or n == 1:
        return expected
    more = [traffic.broadcast(float(size), n, rank, case.backend) for rank in range(n)]
    others = expected.payload_bytes.get("broadcast", (0.0,) * n)
    return replace(
        expected,
        sent_bytes=tuple(a + b.sent for a, b in zip(expected.sent_bytes, more, strict=True)),
        payload_bytes={
            **expected.payload_bytes,
            "broadcast": tuple(other + size for other in others),
        },
        formula=f"{expected.formula} + broadcast of bytes(buffers)",
    )


def _unused(model: nn.Module, loss: Tensor) -> frozenset[str]:
    """Return the names of the parameters that train, and that a loss does not depend on."""
    loss.backward()
    names = frozenset(
        name
        for name, weights in model.named_parameters()
        if weights.requires_grad and weights.grad is None
    )
    model.zero_grad(set_to_none=True)
    return names


def model_facts(loaded: Loaded, case: CaseSpec) -> tuple[ModelFacts, nn.Sequential]:
    """Return the facts of a model that need no training, and the model on the meta device."""
    size = loaded.size(case)
    forward = case.phase is Passes.FORWARD

    def look(device: torch.device, samples: int) -> tuple[nn.Sequential, Batch, int, int]:
        with device:
            model = build_model(loaded, untuned(case), seed=case.seed)
        batch = make_batch(loaded, case, torch.arange(samples), device)
        x: Any = batch.inputs
        activations = 0
        outputs: dict[object, Any] = {}
        for place, block in enumerate(parts(model)):
            key = likeness(block, x) if model.alike else place
            if key not in outputs:
                outputs[key] = block(x)
            x = outputs[key]
            activations += sum(tensor.nbytes for tensor in tensors_of(x))
        # The models of this package use all their parameters.
        searches = not (model.alike or forward)
        unused = _unused(model, loaded.model.loss(x, batch.targets)) if searches else frozenset()
        model.unused = unused  # type: ignore[assignment]  # nn.Module accepts any attribute
        elements = sum(tensor.numel() for tensor in tensors_of(x))
        return model, batch, activations // samples, elements // samples

    model, sample, activations, elements = without_values(look)
    refuse(model, case)
    tokens = getattr(loaded.model, "tokens", None)
    step_s = getattr(loaded.model, "step_s", None)
    floor = getattr(loaded.model, "floor", None)
    return ModelFacts(
        num_params=sum(parameter.numel() for parameter in model.parameters()),
        flops_per_sample=float(loaded.model.flops(size)) / (3 if forward else 1),
        tokens_per_sample=1 if tokens is None else tokens(size),
        activation_bytes_per_sample=activations,
        input_shape=tuple(sample.inputs.shape[1:]),
        input_dtype=str(sample.inputs.dtype).removeprefix("torch."),
        loss_floor=None if floor is None else float(floor(size)),
        step_s=None if step_s is None else step_s(size),
        # The output of log_softmax and the gradient of nll_loss are fp32 for any dtype of x.
        loss_bytes_per_sample=0 if forward else 2 * 4 * elements,
        copies=1 if forward else optimizers.copies(case),
        trained=trained_bytes(model) / parameter_bytes(model),
        frozen_bytes=sum(buffer.numel() * buffer.element_size() for buffer in model.buffers()),
    ), model
