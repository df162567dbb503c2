"""Every private name of a library that the package uses is listed, to ease upgrades."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "harness"
LIBRARIES = {"torch", "pytest", "_pytest", "asv", "pytest_benchmark", "accelerate", "lightning"}

#: Private name, as written in the code -> its purpose, for which there is no public name.
USED = {
    "._backward_hooks": "whether a parameter has a hook, which shards would lose",
    "._post_accumulate_grad_hooks": "the same",
    "._compiled_call_impl": "whether a model compiled one of its modules",
    "._getframe": "the file that executes a text, for an audit hook",
    "_pytest.mark.expression.Expression": "selection of suites by markers, as in pytest",
    "._groups": "pytest 8 detects a duplicate option only when it builds its parser",
    "._anonymous": "the group of options that conftests add",
    "._tw": "pytest's terminal, whose dots must not interrupt the live line",
    "._file": "the file of pytest's terminal",
    "._fill_text": "keeps line breaks of examples in argparse's help",
    "._cdata": "the storage of a tensor",
    "._schema": "whether an operator changes its arguments",
    "._overloadpacket": "torch's FLOP formulas are per operator, not per overload",
    "._get_backend": "the actual backend of a process group",
    "._dump_fr_trace_json": "the flight recorder of gloo",
    "._dump_nccl_trace_json": "the flight recorder of NCCL",
    "._next_index": "the number of samples in a loader's batch, for any data set",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "the same, for all kinds of loaders",
    "._new_process_group_helper": "tuning of gloo's loop threads when they start",
    "._sync_gradients": "FSDP1's no_sync keeps full gradients",
    "._forward_module": "the module wrapped by Lightning's strategy",
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module": "the module in forward()",
    "accelerate.state.AcceleratorState._reset_state": "one process trains several cases",
    "accelerate.state.GradientState._reset_state": "the same",
    "torch._C": "the profiler's fast spans, and the flight recorder",
    "torch._C._autograd": "outlines without the profiler's overhead",
    "torch._C._autograd._toggle_collection_dynamic": "pauses an outline between windows",
    "torch._C._current_graph_task_id": "whether a backward pass recomputes a forward pass",
    "torch._C._distributed_c10d": "the flight recorder of NCCL",
    "torch._C._profiler": "spans cheaper than record_function",
    "torch._C._profiler.ProfilerActivity": "outlines without the profiler's overhead",
    "torch._C._profiler.ProfilerConfig": "the same",
    "torch._C._profiler.ProfilerState": "the same",
    "torch._C._profiler.RecordScope": "the same",
    "torch._C._profiler._ExperimentalConfig": "the same",
    "torch._C._profiler._RecordFunctionFast": "spans cheaper than record_function",
    "torch._dynamo.callback.callback_handler": "the times of compilation, backward included",
    "torch._foreach_mul_": "norms of many tensors in one call",
    "torch._foreach_norm": "the same",
    "torch._scaled_mm": "matrix products in 8 bits",
    "torch._subclasses.fake_tensor.FakeTensorMode": "counts without data",
    "torch.autograd.Variable._execution_engine": "a callback at the end of backward",
    "torch.autograd._add_metadata_json": "the name of the case in a trace",
    "torch.autograd._disable_profiler": "outlines without the profiler's overhead",
    "torch.autograd._enable_profiler": "the same",
    "torch.autograd._prepare_profiler": "the same",
    "torch.distributed._composable.replicate_with_fsdp.replicate": "replicas beside FSDP2's shards",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": "activation checkpointing of blocks",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper": "the same",
    "torch.distributed.autograd._init": "RPC in an existing process group",
    "torch.distributed.distributed_c10d._get_default_group": "the group of all ranks",
    "torch.distributed.distributed_c10d._get_default_store": "RPC uses the store of the ranks",
    "torch.distributed.distributed_c10d._new_process_group_helper": "tuning of loop threads",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives.DefaultReduceScatter": "a compressed one",
    "torch.distributed.rpc._init_rpc_backend": "RPC in an existing process group",
    "torch.distributed.rpc.api._is_current_rpc_agent_set": "the same",
    "torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model": (
        "experts are not averaged"
    ),
    "torch.utils._python_dispatch.TorchDispatchMode": "counts without data",
    "torch.utils._pytree.tree_leaves": "tensors among an operator's arguments",
}


def private(path: Path) -> Iterator[str]:
    """Yield the private names of libraries that a module uses."""
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
    """Whether a name is private; the underscored methods of named tuples are public."""
    return (
        name.startswith("_") and not name.startswith("__") and name not in ("_replace", "_asdict")
    )


def _hidden(whole: str) -> bool:
    top, _, rest = whole.partition(".")
    return top in LIBRARIES and (top == "_pytest" or any(map(_is_private, rest.split("."))))


def _ours(owner: str, root: str) -> bool:
    """Whether an attribute belongs to the class itself or to this package."""
    return owner in ("self", "cls", "os") or root.startswith("harness")


def test_each_private_name_is_listed_and_still_used() -> None:
    names = {name for path in PACKAGE.rglob("*.py") for name in private(path)}
    assert names - USED.keys() == set(), "new: say why nothing public will do"
    assert USED.keys() - names == set(), "gone"
