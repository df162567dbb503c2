"""Asks a case's files what it will do, on meta tensors: nothing is allocated or launched."""

from dataclasses import replace

import torch
from torch import nn

from harness.record import Described, Expected, ModelFacts
from harness.spec import Batching, CaseSpec, batching
from harness.training.context import Loaded, build_model, make_batch


def case_batching(loaded: Loaded, case: CaseSpec) -> Batching:
    """How this case's global batch falls apart."""
    return batching(case, loaded.size(case)["batch"], whole=loaded.supports.whole)


def describe(loaded: Loaded, case: CaseSpec) -> Described:
    """Facts and expectations, or why the case cannot run."""
    try:
        facts, model = model_facts(loaded, case)
        expected = expect(loaded, case, model, facts)
    except ValueError as error:
        return Described(unsupported=str(error))
    return Described(facts=facts, expected=expected)


def expect(loaded: Loaded, case: CaseSpec, model: nn.Module, facts: ModelFacts) -> Expected:
    """What the strategy says of itself; compressors are passed to those that take one."""
    arguments = [case, model, case_batching(loaded, case), facts, loaded.knobs(case)]
    if (compressor := loaded.compressor(case)) is not None:
        arguments.append(compressor)
    with torch.device("meta"):
        expected: Expected = loaded.strategy.expect(*arguments)
    if case.communicate:
        return expected
    return replace(expected, sent_bytes=(0.0,) * case.world_size, payload_bytes={})


def model_facts(loaded: Loaded, case: CaseSpec) -> tuple[ModelFacts, nn.Sequential]:
    """Closed-form facts, and the model on the meta device that they were read from."""
    size = loaded.size(case)
    with torch.device("meta"):
        model = build_model(loaded, case, seed=case.seed)
    one = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    x, activations = one.inputs, 0
    for block in model.children():
        x = block(x)
        activations += x.numel() * x.element_size()
    tokens = getattr(loaded.model, "tokens", None)
    step_s = getattr(loaded.model, "step_s", None)
    return ModelFacts(
        num_params=sum(p.numel() for p in model.parameters()),
        flops_per_sample=float(loaded.model.flops(size)),
        tokens_per_sample=1 if tokens is None else tokens(size),
        activation_bytes_per_sample=activations,
        input_shape=tuple(one.inputs.shape[1:]),
        input_dtype=str(one.inputs.dtype).removeprefix("torch."),
        step_s=None if step_s is None else step_s(size),
    ), model
