"""Private names of torch, pytest and asv: each is listed, so that a new version says what to fix."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "harness"
LIBRARIES = {"torch", "pytest", "_pytest", "asv", "pytest_benchmark", "accelerate", "lightning"}

#: Private name, as it is written -> why nothing public will do.
USED = {
    "._getframe": "which file executes a text, as an audit hook is told of it",
    "_pytest.mark.expression.Expression": "markers of suites are selected as pytest selects them",
    "._groups": "pytest 8 finds a name that two plugins have only as it builds its parser",
    "._anonymous": "the group of options that conftests add",
    "._tw": "pytest's terminal: the live line must not be torn by its dots",
    "._file": "the same terminal's file",
    "._fill_text": "argparse's formatter keeps the lines of examples",
    "._cdata": "the storage that a tensor lies in",
    "._schema": "whether an operator changes what it is given",
    "._overloadpacket": "torch's FLOP formulas are by operator, not by overload",
    "._get_backend": "which backend a process group really has",
    "._dump_fr_trace_json": "the flight recorder of gloo",
    "._dump_nccl_trace_json": "the flight recorder of NCCL",
    "._next_index": "how many samples a loader's batch is of, whoever makes it",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "the same, of all kinds of loaders",
    "._new_process_group_helper": "gloo's loop threads are tuned where they start",
    "._sync_gradients": "FSDP1's own no_sync leaves gradients whole",
    "._forward_module": "what Lightning's strategy has wrapped",
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module": "whose forward() is called",
    "accelerate.state.AcceleratorState._reset_state": "one process trains several cases",
    "accelerate.state.GradientState._reset_state": "the same",
    "torch._C": "the profiler's fast spans, and the flight recorder",
    "torch._C._autograd": "outlines without the profiler's own cost",
    "torch._C._autograd._toggle_collection_dynamic": "an outline is paused between windows",
    "torch._C._current_graph_task_id": "whether a backward pass computes a forward pass again",
    "torch._C._distributed_c10d": "the flight recorder of NCCL",
    "torch._C._profiler": "spans that cost less than record_function",
    "torch._C._profiler.ProfilerActivity": "outlines without the profiler's own cost",
    "torch._C._profiler.ProfilerConfig": "the same",
    "torch._C._profiler.ProfilerState": "the same",
    "torch._C._profiler.RecordScope": "the same",
    "torch._C._profiler._ExperimentalConfig": "the same",
    "torch._C._profiler._RecordFunctionFast": "spans that cost less than record_function",
    "torch._dynamo.callback.callback_handler": "when torch compiles, backward included",
    "torch._foreach_mul_": "norms of many tensors in one call",
    "torch._foreach_norm": "the same",
    "torch._scaled_mm": "products in 8 bits",
    "torch._subclasses.fake_tensor.FakeTensorMode": "what is counted without data",
    "torch.autograd.Variable._execution_engine": "when backward is over",
    "torch.autograd._add_metadata_json": "a trace says which case it is of",
    "torch.autograd._disable_profiler": "outlines without the profiler's own cost",
    "torch.autograd._enable_profiler": "the same",
    "torch.autograd._prepare_profiler": "the same",
    "torch.distributed._composable.replicate_with_fsdp.replicate": "replicas beside FSDP2's shards",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": "activation checkpointing of blocks",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper": "the same",
    "torch.distributed.autograd._init": "RPC in a world that exists already",
    "torch.distributed.distributed_c10d._get_default_group": "the group of all ranks",
    "torch.distributed.distributed_c10d._get_default_store": "RPC meets where the ranks met",
    "torch.distributed.distributed_c10d._new_process_group_helper": "loop threads are tuned",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives.DefaultReduceScatter": "an encoded one",
    "torch.distributed.rpc._init_rpc_backend": "RPC in a world that exists already",
    "torch.distributed.rpc.api._is_current_rpc_agent_set": "the same",
    "torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model": (
        "experts are not averaged"
    ),
    "torch.utils._python_dispatch.TorchDispatchMode": "what is counted without data",
    "torch.utils._pytree.tree_leaves": "tensors among an operator's arguments",
}


def private(path: Path) -> Iterator[str]:
    """Private names of libraries that a module uses."""
    tree = ast.parse(path.read_text())
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = whole
                if _hidden(whole):
                    yield whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            parts, owner = [node.attr], node.value
            while isinstance(owner, ast.Attribute):
                parts.insert(0, owner.attr)
                owner = owner.value
            root = names.get(owner.id, "") if isinstance(owner, ast.Name) else ""
            if root.partition(".")[0] in LIBRARIES:
                yield ".".join((root, *parts))
            elif not (isinstance(owner, ast.Name) and _ours(owner.id, root)):
                yield f".{node.attr}"


def _is_private(name: str) -> bool:
    """Whether it is; a named tuple's methods begin so, and are public."""
    return (
        name.startswith("_") and not name.startswith("__") and name not in ("_replace", "_asdict")
    )


def _hidden(whole: str) -> bool:
    top, _, rest = whole.partition(".")
    return top in LIBRARIES and (top == "_pytest" or any(map(_is_private, rest.split("."))))


def _ours(owner: str, root: str) -> bool:
    """Whether an attribute is the class's own, or this package's."""
    return owner in ("self", "cls", "os") or root.startswith("harness")


def test_each_private_name_is_listed_and_still_used() -> None:
    names = {name for path in PACKAGE.rglob("*.py") for name in private(path)}
    assert names - USED.keys() == set(), "new: say why nothing public will do"
    assert USED.keys() - names == set(), "gone"
