"""Read the literal head of a file without importing it, and find the files of all features."""

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

#: Names of a model's head that strategies need, and what they say.
NEEDED = {
    "TENSOR": "how its layers are cut by width",
    "CONTEXT": "which modules see the whole sequence",
    "EXPERTS": "where its experts are",
    "TABLES": "where its embedding tables are",
}

#: What every strategy trains in that does not say otherwise.
USUAL = (Precision.FP32, Precision.BF16, Precision.AUTOCAST)

Facts = TypeVar("Facts")
_NOT_LITERAL = object()


@dataclass(frozen=True, kw_only=True)
class Supports:
    """SUPPORTS, the head of a strategy: what it can be asked for, and what must hold of it.

    ``oracle`` is the single-device reference that it is compared with: a world's shards in rank
    order, a batch cut into ``parts`` (the name of the knob that says how many), the former within
    the compressor's error, or, where ranks train apart for a while, all of them ``simulated`` in
    one process. ``initial``: whose start the ranks train from; ``broadcast`` ones
    are given unequal starts. ``dims`` are the dimensions of a mesh that it can lay out; without a
    mesh they stand as is ``usual``, or all along the first. ``replicas``: ranks that hold the same
    parameters end with equal bits. ``buffers``: whose buffers a step's first forward pass begins
    with: each rank's own, or rank 0's, which are then broadcast before it. ``uneven``: the last
    batch of an epoch may be short;
    ``forward``: it can go forward alone (phase=forward); ``recovers``: a checkpoint of module and
    optimizer, written by all ranks together, holds all of its state; ``jobs``: so many trainings
    share its ranks, and hear nothing of each other;
    ``compiles``: blocks can be compiled, which what is sent inside of them keeps from. ``needs``
    are names that a model's head must have, ``packages`` what pip has to install where ranks
    run, ``precisions`` those that it can train in,
    ``products`` meshes of several dimensions that are tested. ``on_host`` is the knob with which
    its ranks exchange tensors of the host, too. ``beside`` is the strategy whose
    learning its own is measured by. ``metrics`` and ``baselines`` are those of its usual ladder.
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
        if self.oracle == "simulated" and not self.beside:
            raise ValueError("oracle 'simulated' needs beside, a strategy that trains as one")
        if self.oracle == "compressed" and not self.compressor:
            raise ValueError("oracle 'compressed' needs compressor=True")
        if self.oracle == "micro_batched" and not self.parts:
            raise ValueError("oracle 'micro_batched' needs parts, the knob that says how many")

    def misses(self, head: Iterable[str], precision: Precision) -> str:
        """Why a model with these names in its head cannot be trained so; empty if it can."""
        if "RAGGED" in head and self.dims[0] not in DATA:
            return "needs samples of one length"
        for name in self.needs:
            if name not in head:
                return f"needs {name} in the model's head, {NEEDED[name]}"
        if precision not in self.precisions:
            return f"does not train in {precision}, but in {', '.join(self.precisions)}"
        return ""

    def mesh(self, case: CaseSpec) -> Mesh:
        """Where the case's ranks stand."""
        if case.mesh or not self.usual:
            return Mesh.parse(case.mesh or f"{self.dims[0]}:{case.world_size}")
        return Mesh.parse(self.usual).at(case.world_size)


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """ENGINE, the head of an engine.

    ``joins``: its agents dial in over the network; ``remote``: they are on other machines;
    ``one_machine``: several nodes of it are all on this one, ``always_emulated`` even when there
    is one. ``queues``: a run can be left to its queue. ``packs``: worlds can run side by side, on
    any of its nodes. ``slows_ranks``: stragglers can be planted.
    ``shapes_links``: its knobs set what links carry. ``faults``: what ``recover`` can plant there
    beside crash and hang.
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


#: Names of the heads of files that ranks import, by kind. They are read from the text alone.
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


#: What a model says of times that it keeps by waiting: such a model is a stand-in.
SCHEDULED = ("AT_ONCE", "period_s", "step_s", "slow_down")


def check_imported(kind: str, path: Path, imported: Mapping[str, object]) -> None:
    """SpecError where a file says something else of itself than its text, which plans have read, or
    where a model keeps a schedule and does not say that it stands in for another.
    """
    _, head = read_head(path)
    waits = next((name for name in SCHEDULED if name in imported), "")
    if kind == "models" and waits and "STAND_IN" not in head:
        raise SpecError(
            f"a model with {waits} waits instead of computing: a stand-in",
            where=str(path),
            expected='STAND_IN = "paced", which every verdict on it then says',
            fix=f"grep -n {waits} {path}",
        )
    for name in NAMES[kind]:
        if name in imported and name not in head:
            what = f"{name} is computed"
        elif name in head and not _same(imported.get(name), head[name]):
            what = f"{name} is {head[name]!r} by its text, and when imported {imported.get(name)!r}"
        else:
            continue
        raise SpecError(
            what,
            where=str(path),
            expected=f"{name} = ..., a literal that stays as it is",
            fix=f"grep -n {name} {path}",
        )


def _same(imported: object, literal: Json) -> bool:
    """Whether both are the same literal. Nothing of a user's class is asked."""
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
    """First docstring line and literal upper-case assignments of a Python file."""
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
    """Each source is parsed once: many catalogues hold the same files."""
    tree = ast.parse(source)
    last = dict(_literals(tree))  # of a name that is assigned twice
    head = {name: value for name, value in last.items() if value is not _NOT_LITERAL}
    doc = (ast.get_docstring(tree) or "").strip().splitlines()
    return (doc[0] if doc else ""), head


def facts(kind: type[Facts], head: Json, where: str) -> Facts:
    """A head as its type; SpecError with every mistake at once."""
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
    """The value of a literal, ``dict(a=1)`` counted as one; else _NOT_LITERAL."""
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
    except (ValueError, TypeError):  # names and calls; what cannot be hashed
        return _NOT_LITERAL


FEATURES = PACKAGE / "features"


@functools.cache
def files(mark: str) -> Sequence[Path]:
    """The files of all features whose head has this mark."""
    named = (
        path for path in sorted(FEATURES.rglob("*.py")) if mark in path.read_text(encoding="utf-8")
    )
    return [path for path in named if mark in read_head(path)[1]]


@functools.cache
def modules(mark: str) -> Sequence[ModuleType]:
    """The files of features whose head has this mark, imported."""
    return [importlib.import_module(name_of(path)) for path in files(mark)]


def name_of(path: Path) -> str:
    """The name under which a file of the package is imported."""
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
