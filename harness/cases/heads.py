"""Reads the literal head of a file without importing it, and finds the files of features."""

import ast
import dataclasses
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, cast

from harness.base.documents import Json, from_doc
from harness.base.errors import SpecError, nearest
from harness.base.programs import PACKAGE
from harness.cases.case import DATA, CaseSpec, Dim, Mesh, Precision

#: Names that a strategy can require in a model's head, and a description of each.
NEEDED = {
    "TENSOR": "how its layers are divided by width",
    "CONTEXT": "which modules see the whole sequence",
    "EXPERTS": "where its experts are",
    "TABLES": "where its embedding tables are",
}

#: The precisions of a strategy that lists none.
USUAL = (Precision.FP32, Precision.BF16, Precision.AUTOCAST)

Facts = TypeVar("Facts")
#: The mark of a value that is not a literal.
_NOT_LITERAL = object()


@dataclass(frozen=True, kw_only=True)
class Supports:
    """The literal SUPPORTS of a strategy: the options that it supports, and the checks that its
    results must pass.

    ``oracle`` selects the single-device reference with which the strategy is compared.
    ``shard_ordered`` adds up the gradients of the world's shards in rank order. ``micro_batched``
    divides a batch into micro-batches; ``parts`` names the knob with their number. ``compressed``
    is ``shard_ordered``, but allows the error of the compressor. ``simulated`` runs all ranks in
    one process, for strategies whose ranks train separately for some steps.

    ``initial`` states where the initial weights come from: from the same seed on all ranks, from a
    broadcast, or from each rank itself. In the check, the ranks of ``broadcast`` strategies start
    with different weights. ``dims`` lists the mesh dimensions that the strategy supports. If the
    case has no mesh, ranks are arranged as in ``usual``, or along the first dimension if ``usual``
    is empty. ``replicas`` states that ranks with the same parameters have bitwise equal values
    after training. ``buffers`` states which buffers the first forward pass of a step uses: the
    buffers of each rank, or the buffers of rank 0, which are broadcast before it.

    ``uneven`` states that the last batch of an epoch may be short. ``forward`` states that the
    forward pass can run alone (phase=forward). ``recovers`` states that a checkpoint of module and
    optimizer, written by all ranks together, holds the complete state. ``jobs`` is the number of
    independent trainings that share the ranks. ``compiles`` states that blocks can be compiled,
    which is impossible if there is communication inside them.

    ``needs`` lists names that a model's head must have. ``packages`` lists the pip packages that
    the machines of the ranks need. ``precisions`` lists the precisions in which the strategy can
    train. ``products`` lists tested meshes of several dimensions. ``on_host`` names the knob with
    which ranks also exchange host tensors. ``beside`` is the strategy with which the learning of
    this strategy is compared. ``metrics`` and ``baselines`` are the defaults of its scaling sweep.
    """

    worlds: Literal["any", "one"]
    oracle: Literal["shard_ordered", "micro_batched", "compressed", "simulated"]
    initial: Literal["same_seed", "broadcast", "own"]
    parts: str = ""
    dims: tuple[Dim, ...] = (Dim.DP,)
    usual: str = ""
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = USUAL
    products: tuple[str, ...] = ()
    on_host: str = ""
    replicas: bool = False
    buffers: Literal["own", "broadcast"] = "own"
    uneven: bool = False
    compressor: bool = False
    compiles: bool = True
    forward: bool = False
    recovers: bool = True
    jobs: int = 1
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = ("weak", "strong")
    beside: str = ""
    metrics: tuple[str, ...] = ("efficiency",)
    baselines: tuple[str, ...] = ("plain", "wrapped")

    def __post_init__(self) -> None:
        """Raise ValueError if a field is missing that the oracle needs."""
        if self.oracle == "simulated" and not self.beside:
            raise ValueError("oracle 'simulated' needs 'beside': the strategy to compare with")
        if self.oracle == "compressed" and not self.compressor:
            raise ValueError("oracle 'compressed' needs compressor=True")
        if self.oracle == "micro_batched" and not self.parts:
            raise ValueError(
                "oracle 'micro_batched' needs 'parts': the knob with the number of micro-batches"
            )

    def misses(self, head: Iterable[str], precision: Precision) -> str:
        """Return why the strategy cannot train a model with this head in this precision.

        ``head`` holds the names in the model's head. Return an empty string if the strategy can.
        """
        if "RAGGED" in head and self.dims[0] not in DATA:
            return "needs samples of equal length"
        for name in self.needs:
            if name not in head:
                return f"needs {name} in the model's head, {NEEDED[name]}"
        if precision not in self.precisions:
            return f"does not train in {precision}, only in {', '.join(self.precisions)}"
        return ""

    def mesh(self, case: CaseSpec) -> Mesh:
        """Return the mesh in which the ranks of the case are arranged."""
        if case.mesh or not self.usual:
            return Mesh.parse(case.mesh or f"{self.dims[0]}:{case.world_size}")
        return Mesh.parse(self.usual).at(case.world_size)


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The literal ENGINE of an engine, which starts the agents on the nodes.

    ``multi_node`` states that the engine can start several nodes. ``one_machine`` states that all
    of them are on this machine. ``always_emulated`` states that the engine is a simulation even
    with a single node. ``joins`` states that its agents connect over the network, and ``remote``
    that they run on other machines. ``queues`` states that a run can be submitted to a queue.
    ``packs`` states that several worlds can run concurrently, on any of the nodes. ``slows_ranks``
    states that ranks can be slowed on purpose (stragglers). ``shapes_links`` states that knobs set
    the rate of links. ``faults`` lists the faults that ``recover`` can inject, in addition to crash
    and hang.
    """

    multi_node: bool = False
    one_machine: bool = False
    always_emulated: bool = False
    joins: bool = False
    remote: bool = False
    queues: bool = False
    packs: bool = True
    slows_ranks: bool = True
    shapes_links: bool = False
    faults: tuple[str, ...] = ()


#: The names that the head of a file may have, by kind. Ranks import these files, but plans read
#: only the text of their heads.
NAMES: Mapping[str, tuple[str, ...]] = {
    "strategies": ("SUPPORTS", "KNOBS", "RANGES", "TWIN", "WEIGHTED", "HOOKED", "VERSION"),
    "models": (
        "SIZES", "KNOBS", "RANGES", "STAND_IN", "AT_ONCE", "ALIKE", "RAGGED", "VERSION", *NEEDED,
    ),
    "compressors": (
        "ERROR_BOUND", "KNOBS", "RANGES", "TWIN", "CLAIM", "TELESCOPES", "LOSSLESS", "METHOD",
        "BESIDE", "CONTROL", "VERSION",
    ),
    "inputs": ("INPUT", "KNOBS", "RANGES", "VERSION"),
}  # fmt: skip


#: Names that only models with simulated compute have. These models wait until a step has taken a
#: certain time.
SCHEDULED = ("AT_ONCE", "period_s", "step_s", "slow_down")


def check_imported(kind: str, path: Path, imported: Mapping[str, object]) -> None:
    """Raise SpecError if an imported file contradicts its head, which plans read from the text.

    Raise it also if a model waits instead of computing, but has no STAND_IN in its head.
    """
    _, head = read_head(path)
    waits = next((name for name in SCHEDULED if name in imported), "")
    if kind == "models" and waits and "STAND_IN" not in head:
        raise SpecError(
            f"{waits} shows that the model waits instead of computing: its compute is simulated",
            where=str(path),
            expected='STAND_IN = "paced", so that every verdict on the model shows it',
            fix=f"grep -n {waits} {path}",
        )
    for name in NAMES[kind]:
        if name in imported and name not in head:
            what = f"{name} is computed, but must be a literal"
        elif name in head and not _same(imported.get(name), head[name]):
            what = f"{name} is {head[name]!r} in the file, but {imported.get(name)!r} after import"
        else:
            continue
        raise SpecError(
            what,
            where=str(path),
            expected=f"{name} = ..., with a literal that the file does not change later",
            fix=f"grep -n {name} {path}",
        )


def _same(imported: object, literal: Json) -> bool:
    """Return whether a value equals a literal, without calling methods of a user's class."""
    if type(imported) is not type(literal):
        return False
    if isinstance(literal, dict):
        assert type(imported) is dict
        alike = list(map(type, imported)) == list(map(type, literal))
        return (
            alike
            and list(imported) == list(literal)
            and all(_same(imported[key], value) for key, value in literal.items())
        )
    if isinstance(literal, list | tuple):
        assert isinstance(imported, list | tuple)
        return len(imported) == len(literal) and all(map(_same, imported, literal))
    return bool(imported == literal)


def read_head(path: Path) -> tuple[str, dict[str, Json]]:
    """Return the first line of a Python file's docstring, and its upper-case literals by name."""
    try:
        return _head_of(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SpecError(
            f"is not valid Python: {reason}{line}",
            where=str(path),
            fix=f"python -m py_compile {path}",
        ) from None


@functools.lru_cache(maxsize=1024)
def _head_of(source: str) -> tuple[str, dict[str, Json]]:
    """Return the head in a source text, from a cache because catalogues read the same files."""
    tree = ast.parse(source)
    last = dict(_literals(tree))  # the last of several assignments counts
    head = {name: value for name, value in last.items() if value is not _NOT_LITERAL}
    doc = (ast.get_docstring(tree) or "").strip().splitlines()
    return (doc[0] if doc else ""), head


def facts(kind: type[Facts], head: Json, where: str) -> Facts:
    """Convert a head to its type. Raise SpecError that lists all mistakes."""
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    wrong = []
    for name in head if isinstance(head, Mapping) else ():
        if name not in known:
            wrong.append(f"{name!r} is unknown{nearest(name, known)}")
    if not wrong:
        try:
            return from_doc(kind, head)
        except ValueError as error:
            wrong.append(str(error))
    raise SpecError(
        "; ".join(wrong), where=where, expected=f"{', '.join(known)}", fix="scaleproof run list"
    )


def _literals(tree: ast.Module) -> Iterator[tuple[str, Json]]:
    """Yield the upper-case names that a module assigns, with their values."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            target = cast(ast.expr, node.target)
            value = node.value
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            value = node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
            yield target.id, _literal(value)


def _literal(node: ast.expr) -> Json:
    """Return the value of a literal (``dict(a=1)`` counts as one), or _NOT_LITERAL."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        if node.args or not all(keyword.arg for keyword in node.keywords):
            return _NOT_LITERAL  # dict(OTHER, a=1), dict(**OTHER)
        values = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        return _NOT_LITERAL if _NOT_LITERAL in values.values() else values
    if isinstance(node, ast.Dict):
        keys = [_literal(key) if key is not None else _NOT_LITERAL for key in node.keys]
        items = [_literal(v) for v in node.values]
        bad = any(x is _NOT_LITERAL for x in (*keys, *items))
        bad |= any(isinstance(key, list | dict) for key in keys)
        return _NOT_LITERAL if bad else dict(zip(keys, items, strict=True))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # a name, a call, or an unhashable key
        return _NOT_LITERAL


#: The folder with one subfolder for each feature.
FEATURES = PACKAGE / "features"


@functools.cache
def files(mark: str) -> Sequence[Path]:
    """Return the files of features that have this name in their head."""
    named = (
        path for path in sorted(FEATURES.rglob("*.py")) if mark in path.read_text(encoding="utf-8")
    )
    return [path for path in named if mark in read_head(path)[1]]


@functools.cache
def modules(mark: str) -> Sequence[ModuleType]:
    """Import the files of features that have this name in their head, and return the modules."""
    return [importlib.import_module(name_of(path)) for path in files(mark)]


def name_of(path: Path) -> str:
    """Return the name under which a file of the package is imported."""
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
