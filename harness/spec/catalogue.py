"""What can be named in a case: strategies, models, compressors, engines and suites.

One file adds one thing. Its *literal head* (docstring, SUPPORTS, KNOBS, SIZES, ...) is read with
``ast``; nothing is imported, so listing and collecting never load torch or a user's code.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from harness.base.documents import Json
from harness.base.errors import SpecError
from harness.base.programs import PACKAGE
from harness.spec.case import CaseSpec, Mode, StandIn

KINDS = ("strategies", "models", "compressors", "engines", "suites")
_FOLDERS = {
    "strategies": "training/strategies",
    "models": "training/models",
    "compressors": "training/compressors",
    "engines": "launch/engines",
}
_SINGULAR = {
    "strategies": "strategy",
    "models": "model",
    "compressors": "compressor",
    "engines": "engine",
    "suites": "suite",
}
_MARKS = {
    "strategies": "SUPPORTS",
    "models": "SIZES",
    "compressors": "ERROR_BOUND",
    "engines": "ENGINE",
}


_NOT_LITERAL = object()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file's literal head. ``head`` maps upper-case names to their literal values."""

    kind: str
    name: str
    path: Path
    doc: str
    head: Mapping[str, Json] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """What to import: a module of this package by name, a user's file by path."""
        if not self.path.is_relative_to(PACKAGE):
            return str(self.path)
        return ".".join(("harness", *self.path.relative_to(PACKAGE).with_suffix("").parts))

    @property
    def knobs(self) -> Mapping[str, Json]:
        """Knob name -> default; ``version`` is one, so that a new version starts a new series."""
        return {"version": 1, **self.head.get("KNOBS", {})}


def read_head(path: Path) -> tuple[str, dict[str, Json]]:
    """First docstring line and literal upper-case assignments of a Python file."""
    try:
        tree = ast.parse(path.read_text())
    except SyntaxError as error:
        raise SpecError(
            f"is not valid Python: {error.msg} (line {error.lineno})",
            where=str(path),
            fix=f"python -m py_compile {path}",
        ) from None
    head: dict[str, Json] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            target, value = cast(ast.expr, node.target), node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
            literal = _literal(value)
            if literal is not _NOT_LITERAL:
                head[target.id] = literal
    doc = (ast.get_docstring(tree) or "").strip().splitlines()
    return (doc[0] if doc else ""), head


def _literal(node: ast.expr) -> Json:
    """The value of a literal, ``dict(a=1)`` counted as one; else _NOT_LITERAL."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        values = {k.arg: _literal(k.value) for k in node.keywords if k.arg}
        return _NOT_LITERAL if _NOT_LITERAL in values.values() else values
    if isinstance(node, ast.Dict):
        keys = [_literal(k) if k is not None else _NOT_LITERAL for k in node.keys]
        items = [_literal(v) for v in node.values]
        bad = any(x is _NOT_LITERAL for x in (*keys, *items))
        return _NOT_LITERAL if bad else dict(zip(keys, items, strict=True))
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _NOT_LITERAL


class Catalogue:
    """Everything that a case can name, from the package, entry points and ``--path`` folders."""

    def __init__(self, paths: Sequence[Path] = (), suites: Sequence[Path] = ()) -> None:
        self.paths = tuple(p.resolve() for p in paths)
        for path in self.paths:
            if not path.is_dir():
                raise SpecError(
                    f"--path {path}: not a folder", expected="a folder of .py files", fix="ls"
                )
        self._suites = tuple(suites)

    @functools.cached_property
    def entries(self) -> Mapping[str, Mapping[str, Entry]]:
        """Kind -> name -> Entry. A user's file may not hide one of the package."""
        found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        for kind, folder in _FOLDERS.items():
            for path in sorted((PACKAGE / folder).glob("*.py")):
                self._add(found, path, kind)
        for path in [
            f for p in (*_entry_point_folders(), *self.paths) for f in sorted(p.glob("*.py"))
        ]:
            self._add(found, path, None)
        for folder_path in self._suites:
            for path in sorted(folder_path.glob("test_*.py")):
                doc, _ = read_head(path)
                found["suites"][path.stem.removeprefix("test_")] = Entry(
                    kind="suites", name=path.stem.removeprefix("test_"), path=path, doc=doc
                )
        return found

    @staticmethod
    def _add(found: dict[str, dict[str, Entry]], path: Path, kind: str | None) -> None:
        doc, head = read_head(path)
        for k, mark in _MARKS.items():
            if mark in head and (kind == k or (kind is None and k != "engines")):
                if path.stem in found[k]:
                    raise SpecError(
                        f"a {_SINGULAR[k]} named {path.stem!r} exists already"
                        f" ({found[k][path.stem].path})",
                        where=str(path),
                        expected="a name of its own",
                        fix=f"mv {path} {path.with_stem('my_' + path.stem)}",
                    )
                found[k][path.stem] = Entry(kind=k, name=path.stem, path=path, doc=doc, head=head)

    def get(self, kind: str, name: str) -> Entry:
        """The entry of that name, or a SpecError with the nearest names."""
        known = self.entries[kind]
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise SpecError(
                f"no {_SINGULAR[kind]} named {name!r}"
                + (f": did you mean {near[0]!r}?" if near else ""),
                expected=", ".join(known),
                fix=f"scaleproof list {kind}",
            )
        return known[name]

    def files(self, case: CaseSpec) -> dict[str, str]:
        """Kind -> the files that a case names: modules of this package (a node may have it
        elsewhere), paths of a user's (every node needs them at the same place).
        """
        names = {"strategies": case.strategy, "models": case.model}
        if case.compressor:
            names["compressors"] = case.compressor
        return {kind: self.get(kind, name).module for kind, name in names.items()}

    def normalise(self, case: CaseSpec) -> CaseSpec:
        """Check names, sizes, modes and knobs; drop default knobs; label stand-ins."""
        strategy = self.get("strategies", case.strategy)
        model = self.get("models", case.model)
        entries = [strategy, model]
        if case.compressor is not None:
            entries.append(self.get("compressors", case.compressor))
        fix = "scaleproof list"
        sizes = model.head["SIZES"]
        if case.size not in sizes:
            raise SpecError(
                f"model {case.model!r} has no size {case.size!r}",
                where=case.id,
                expected=", ".join(sizes),
                fix="scaleproof list models",
            )
        supports = strategy.head["SUPPORTS"]
        if case.device not in supports.get("devices", ("cpu", "cuda")):
            raise SpecError(
                f"strategy {case.strategy!r} does not run on {case.device}", where=case.id, fix=fix
            )
        if case.mode not in supports.get("modes", ("weak", "strong")):
            raise SpecError(
                f"strategy {case.strategy!r} has no {case.mode} mode", where=case.id, fix=fix
            )
        if supports.get("compressor", False) != (case.compressor is not None):
            need = "needs" if supports.get("compressor") else "takes no"
            raise SpecError(
                f"strategy {case.strategy!r} {need} compressor",
                where=case.id,
                expected="compressed:topk/... for example",
                fix="scaleproof list compressors",
            )
        if supports.get("worlds") == "one" and case.world_size != 1:
            raise SpecError(
                f"strategy {case.strategy!r} runs one rank only", where=case.id, fix=fix
            )
        for name in ("micro_batch", "global_batch", "seq_len", "accumulate", "devices_per_rank"):
            value = getattr(case, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} = {value}", where=case.id, expected="at least 1", fix=fix)
        if case.shares and (len(case.shares) != case.world_size or min(case.shares) <= 0):
            raise SpecError(
                f"shares {case.shares} for {case.world_size} ranks",
                where=case.id,
                expected="a number above 0 for each rank",
                fix="--set shares=[1,0.5]",
            )
        try:
            _ = case.slowed
        except ValueError as error:
            raise SpecError(str(error), where=case.id, fix="--set stragglers=1:0.5") from None
        if case.mode is Mode.STRONG and case.micro_batch is not None:
            raise SpecError(
                "strong mode derives the micro-batch",
                where=case.id,
                expected="global_batch",
                fix=fix,
            )
        if case.seq_len is not None and "seq" not in sizes[case.size]:
            raise SpecError(f"model {case.model!r} has no sequence length", where=case.id, fix=fix)
        if sum(case.nodes) != case.world_size or min(case.nodes) < 1:
            raise SpecError(
                f"nodes {case.nodes} do not add up to {case.world_size} ranks",
                where=case.id,
                fix=fix,
            )
        if case.mode is Mode.STRONG and case.global_batch is None:
            raise SpecError(
                "strong mode needs a global batch",
                where=case.id,
                expected="--set global_batch=N",
                fix=fix,
            )
        if case.mode is Mode.WEAK and case.global_batch is not None:
            raise SpecError(
                "weak mode derives the global batch",
                where=case.id,
                expected="micro_batch alone",
                fix=fix,
            )
        entries += self._network(case)
        knobs = self.checked(entries, case.knobs, case.id)
        for entry in entries:
            if (version := entry.head.get("VERSION", 1)) != 1:
                knobs[f"{entry.name}.version"] = version
        if len(case.nodes) == 1:  # it uses no link
            knobs = {
                k: v for k, v in knobs.items() if k.split(".")[0] not in self.entries["engines"]
            }
        stand_in = set(case.stand_in)
        if model.head.get("STAND_IN"):
            stand_in.add(StandIn(model.head["STAND_IN"]))
        return replace(case, knobs=dict(sorted(knobs.items())), stand_in=frozenset(stand_in))

    @staticmethod
    def checked(entries: Sequence[Entry], asked: Mapping[str, Json], where: str) -> dict[str, Json]:
        """The knobs that differ from their defaults; SpecError for one that nobody has."""
        knobs = dict(asked)
        defaults = {f"{e.name}.{k}": v for e in entries for k, v in e.knobs.items()}
        for key, value in list(knobs.items()):
            if key not in defaults:
                near = difflib.get_close_matches(key, defaults, 1)
                raise SpecError(
                    f"unknown knob {key!r}" + (f": did you mean {near[0]!r}?" if near else ""),
                    where=where,
                    expected=", ".join(sorted(k for k in defaults if not k.endswith(".version"))),
                    fix="scaleproof list",
                )
            want = type(defaults[key])
            if want is float and type(value) is int:
                value = knobs[key] = float(value)
            if type(value) is not want:
                raise SpecError(
                    f"knob {key} = {value!r}",
                    where=where,
                    expected=want.__name__,
                    fix="scaleproof list",
                )
            if value == defaults[key]:
                del knobs[key]
        return knobs

    def _network(self, case: CaseSpec) -> list[Entry]:
        """Engines that make the network that a case runs over: its rates are part of the case."""
        named = {name.split(".")[0] for name in case.knobs}
        emulated = StandIn.EMULATED in case.stand_in
        return [e for name, e in self.entries["engines"].items() if emulated and name in named]

    def twin(self, case: CaseSpec) -> CaseSpec:
        """Same strategy, knobs, world, precision; smallest size and its batch: for the gate.

        The twin is what lets an 8B case be checked against a single-device reference at all.
        """
        sizes = self.get("models", case.model).head["SIZES"]
        smallest = next(iter(sizes))
        if case.size == smallest and case.seq_len is None:
            return case
        batch = sizes[smallest]["batch"]
        shards = case.world_size * case.accumulate
        return replace(
            case,
            size=smallest,
            seq_len=None,
            micro_batch=None,
            global_batch=batch * shards if case.mode is Mode.STRONG else None,
        )


def _entry_point_folders() -> list[Path]:
    """Packages that distributions name under the entry-point group ``scaleproof.paths``."""
    folders = []
    for point in entry_points(group="scaleproof.paths"):
        spec = importlib.util.find_spec(point.value)  # a top-level package: found, not imported
        folders += [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return folders
