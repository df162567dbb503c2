"""The kernels of a training run: selection before a run, and detection of those that ran."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import profile

from harness.cases import Attention, CaseSpec, Compiled, Stepping
from harness.training.accelerator import Accelerator

#: The operators by which a profile shows which attention kernel ran.
ATTENTION = {
    Attention.MATH: ("_scaled_dot_product_attention_math",),
    Attention.EFFICIENT: ("_scaled_dot_product_efficient_attention",),
    Attention.FLASH: (
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    ),
    Attention.CUDNN: ("_scaled_dot_product_cudnn_attention",),
}  # fmt: skip
_SWITCHES = {Attention.EFFICIENT: "mem_efficient"}
#: Rows and columns of the matrices whose product ``mantissa_bits`` examines.
SIDE = 256
#: Attribute that marks a block as compiled by ``compiled``.
MARK = "compiled_by_case"
#: First words of the name under which torch's profiler records an execution of compiled code.
REGION = "Torch-Compiled Region"


def choose(case: CaseSpec) -> None:
    """Set torch's kernel switches in this process as the case requires."""
    if case.attention is not Attention.ANY:
        for kernel in ATTENTION:
            switch = f"enable_{_SWITCHES.get(kernel, kernel)}_sdp"
            getattr(torch.backends.cuda, switch)(kernel is case.attention)
    if case.tf32:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = case.cudnn_benchmark


def compiled(model: nn.Module, how: Compiled) -> int:
    """Compile each block of a model separately and return the number of blocks.

    Modules of torch itself are not compiled, because each of them runs as one operator. Torch
    raises an error at a graph break.
    """
    compilable = blocks(model)
    for block in compilable:
        forward = torch.compile(type(block).forward, backend=str(how), fullgraph=True)
        block.forward = functools.partial(forward, block)
        setattr(block, MARK, True)
    return len(compilable)


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules in the model whose classes torch does not define."""
    outermost = []
    for child in model.children():
        custom = not type(child).__module__.startswith("torch.")
        outermost += [child] if custom else blocks(child)
    return outermost


def compiled_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a module that ``compiled`` has compiled."""
    return [m for m in module.modules() if getattr(m, MARK, False)]


def stepping(case: CaseSpec, usual: bool) -> dict[str, bool]:
    """Return the arguments of torch's optimizers that select their implementation.

    ``usual`` states whether the default implementation is fused.
    """
    return {
        Stepping.USUAL: dict(fused=usual),
        Stepping.LOOP: dict(foreach=False, fused=False),
        Stepping.FOREACH: dict(foreach=True),
        Stepping.FUSED: dict(fused=True),
    }[case.stepping]


def operators(accelerator: Accelerator, step: Callable[[], object]) -> Counter[str]:
    """Run a step, and return how often each operator ran in all threads of the step."""
    with profile(activities=accelerator.activities) as seen:
        step()
    return Counter(str(event.name).removeprefix("aten::") for event in seen.events() or ())


def attention_of(ran: Counter[str]) -> str:
    """Return the names of the attention kernels that ran, separated by commas."""
    return ",".join(
        str(attention)
        for attention, names in ATTENTION.items()
        if any(name in ran for name in names)
    )


def stepping_of(ran: Counter[str]) -> Stepping:
    """Return which implementation the optimizer used: fused, foreach kernels, or a loop."""
    if any(name.startswith(("_fused_adamw", "_fused_sgd")) for name in ran):
        return Stepping.FUSED
    updates = ("_foreach_addcdiv_", "_foreach_add_", "_foreach_mul_")
    return Stepping.FOREACH if any(name in ran for name in updates) else Stepping.LOOP


def regions_of(ran: Counter[str]) -> int:
    """Return how often compiled code was executed."""
    return sum(count for name, count in ran.items() if name.startswith(REGION))


def mantissa_bits(device: torch.device) -> int:
    """Return the mantissa bits that a product of fp32 matrices keeps: 23, or 10 in TF32.

    The matrices are so large that the libraries do not use special kernels for small matrices.
    """
    last = torch.tensor([2.0**-b for b in range(1, 24)], device=device)
    rows = torch.zeros(SIDE, SIDE, device=device)
    rows[:23, 0] = 1 + last
    return int(((rows @ torch.eye(SIDE, device=device))[:23, 0] == 1 + last).sum())
