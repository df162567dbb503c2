"""The catalogue of names for a case: strategies, models, compressors, engines and suites.

One file adds one thing. Its *literal head* (docstring, SUPPORTS, KNOBS, SIZES, ...) is read with
``ast``; nothing is imported, so listing and collecting never load torch or a user's code.
"""

import functools
import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from harness.base.documents import Json
from harness.base.errors import SpecError, nearest
from harness.base.programs import PACKAGE
from harness.cases import twins
from harness.cases.case import CaseSpec, Mesh, StandIn
from harness.cases.checks import check, check_knobs
from harness.cases.heads import EngineFacts, Supports, facts, read_head


class EntryKind(NamedTuple):
    """A kind of catalogue entry: its word, the folder that has it, the name that marks heads."""

    word: str
    folder: str
    mark: str


_KINDS = {
    "strategies": EntryKind("strategy", "training/strategies", "SUPPORTS"),
    "models": EntryKind("model", "training/models", "SIZES"),
    "compressors": EntryKind("compressor", "training/compressors", "ERROR_BOUND"),
    "inputs": EntryKind("input", "training/inputs", "INPUT"),
    "engines": EntryKind("engine", "launch/engines", "ENGINE"),
}
KINDS = (*_KINDS, "suites")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file's literal head. ``head`` maps upper-case names to their literal values."""

    kind: str
    name: str
    path: Path
    doc: str
    head: Mapping[str, Json] = field(default_factory=dict)

    @property
    def shipped(self) -> bool:
        """Whether it is a file of this package."""
        return self.path.is_relative_to(PACKAGE)

    @property
    def module(self) -> str:
        """The module to import: one of this package by name, a user's file by path."""
        if not self.shipped:
            return str(self.path)
        return ".".join(("harness", *self.path.relative_to(PACKAGE).with_suffix("").parts))

    @functools.cached_property
    def supports(self) -> Supports:
        return facts(Supports, self.head["SUPPORTS"], f"{self.path}: SUPPORTS")

    @property
    def measured_by(self) -> str:
        """The strategy whose learning its own is measured by; none of a shipped one that names
        itself: it learns as it does, and how fast it steps is what it is for.
        """
        beside = self.supports.beside
        return "" if self.shipped and beside == self.name else beside

    @functools.cached_property
    def engine(self) -> EngineFacts:
        return facts(EngineFacts, self.head["ENGINE"], f"{self.path}: ENGINE")

    def check(self) -> None:
        """SpecError with every mistake in what a strategy or an engine says of itself."""
        if self.kind == "strategies":
            _ = self.supports
        elif self.kind == "engines":
            _ = self.engine

    @property
    def knobs(self) -> Mapping[str, Json]:
        """Knob name -> default; ``version`` is one, so that a new version starts a new series."""
        return {"version": 1, **self.head.get("KNOBS", {})}


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
        _refuse_doubles(self.paths)

    @functools.cached_property
    def entries(self) -> Mapping[str, Mapping[str, Entry]]:
        """Kind -> name -> Entry. A user's file may not hide one of the package."""
        by_kind: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        for kind, known in _KINDS.items():
            for path in sorted((PACKAGE / known.folder).rglob("*.py")):
                self._add(by_kind, path, kind)
        for path in [
            f for p in (*_entry_point_folders(), *self.paths) for f in sorted(p.glob("*.py"))
        ]:
            self._add(by_kind, path, None)
        for folder_path in self._suites:
            for path in sorted(folder_path.glob("test_*.py")):
                doc, _ = read_head(path)
                by_kind["suites"][path.stem.removeprefix("test_")] = Entry(
                    kind="suites", name=path.stem.removeprefix("test_"), path=path, doc=doc
                )
        return by_kind

    @staticmethod
    def _add(by_kind: dict[str, dict[str, Entry]], path: Path, kind: str | None) -> None:
        doc, head = read_head(path)
        for key, known in _KINDS.items():
            if known.mark in head and kind in (key, None):
                if path.stem in by_kind[key]:
                    raise SpecError(
                        f"a {known.word} named {path.stem!r} exists already"
                        f" ({by_kind[key][path.stem].path})",
                        where=str(path),
                        expected="a new name",
                        fix=f"mv {path} {path.with_stem('my_' + path.stem)}",
                    )
                entry = Entry(kind=key, name=path.stem, path=path, doc=doc, head=head)
                entry.check()
                by_kind[key][path.stem] = entry

    def get(self, kind: str, name: str) -> Entry:
        """The entry of that name, or a SpecError with the nearest names."""
        known = self.entries[kind]
        if name not in known:
            if meant := [f for path in self.paths if (f := path / f"{name}.py").is_file()]:
                raise SpecError(
                    f"a {_word(kind)} needs {_KINDS[kind].mark} at its top level, as a literal",
                    where=str(meant[0]),
                    expected=f"{_KINDS[kind].mark} = ...",
                    fix=f"grep -n {_KINDS[kind].mark} {meant[0]}",
                )
            raise SpecError(
                f"no {_word(kind)} named {name!r}{nearest(name, known)}",
                expected=", ".join(known),
                fix=f"scaleproof run list {kind}",
            )
        return known[name]

    def files(self, case: CaseSpec) -> dict[str, str]:
        """Kind -> the files that a case names: modules of this package (a node may have it
        elsewhere), paths of a user's (every node needs them at the same place).
        """
        if case.script:
            return {}
        return {entry.kind: entry.module for entry in self.entries_of(case)}

    def entries_of(self, case: CaseSpec) -> list[Entry]:
        """The files that a case names: its strategy, model and input, and its compressor."""
        names = {"strategies": case.strategy, "models": case.model, "inputs": case.data}
        if case.compressor is not None:
            names["compressors"] = case.compressor
        return [self.get(kind, name) for kind, name in names.items()]

    def normalise(self, case: CaseSpec) -> CaseSpec:
        """The case checked and in its one spelling: no default knobs, stand-ins labelled."""
        if case.script:
            return case  # nothing is known of it but its command
        entries = self.entries_of(case)
        strategy, model, *_ = entries
        check(case, strategy.supports, model.head["SIZES"])
        engines = self.entries["engines"]
        emulated = StandIn.EMULATED in case.stand_in
        named = dict.fromkeys(knob.partition(".")[0] for knob in case.knobs)
        shaping = [engines[e] for e in named if emulated and e in engines]
        knobs = self.checked([*entries, *shaping], case.knobs, case.id)
        for entry in (*entries, *shaping):
            if (version := entry.head.get("VERSION", 1)) != 1:
                knobs[f"{entry.name}.version"] = version
        if len(case.nodes) == 1:  # it uses no link
            knobs = {
                key: knob for key, knob in knobs.items() if key.partition(".")[0] not in engines
            }
        stand_in = {*case.stand_in}
        if model.head.get("STAND_IN"):
            stand_in.add(StandIn(model.head["STAND_IN"]))
        mesh = Mesh.parse(case.mesh)
        usual = str(mesh) in ("", str(strategy.supports.mesh(replace(case, mesh=""))))
        return replace(
            case,
            knobs=dict(sorted(knobs.items())),
            stand_in=frozenset(stand_in),
            mesh="" if usual else str(mesh),
        )

    @staticmethod
    def checked(entries: Sequence[Entry], asked: Mapping[str, Json], where: str) -> dict[str, Json]:
        """The knobs that differ from the defaults of these files."""
        defaults = {
            f"{entry.name}.{key}": knob for entry in entries for key, knob in entry.knobs.items()
        }
        ranges = {
            f"{entry.name}.{key}": value
            for entry in entries
            for key, value in entry.head.get("RANGES", {}).items()
        }
        return check_knobs(asked, defaults, ranges, where)

    def network(self, case: CaseSpec) -> tuple[tuple[str, Json], ...]:
        """The settings of the engine's network for this case: names and values of its knobs."""
        engines = self.entries["engines"]
        return tuple(
            (key, knob) for key, knob in case.knobs.items() if key.partition(".")[0] in engines
        )

    def twin(self, case: CaseSpec, number: int = 0) -> CaseSpec:
        """Same strategy, knobs, world, precision; smallest size and its batch: for the gate.

        ``number`` is that of the first one that the strategy accepts, as an agent described it.
        """
        sizes = self.get("models", case.model).head["SIZES"]
        strategy = self.get("strategies", case.strategy)
        asked = case.knobs_of(strategy.name, strategy.knobs)
        less = twins.fewer(strategy.name, asked, strategy.head.get("TWIN", {}))
        if case.compressor is not None:
            codec = self.get("compressors", case.compressor)
            asked = case.knobs_of(codec.name, codec.knobs)
            less |= twins.fewer(codec.name, asked, codec.head.get("TWIN", {}))
        return next(itertools.islice(twins.candidates(case, sizes, less), number, None))


#: Files that many folders have, and nobody imports by name.
_COMMON = {"__init__", "conftest", "setup"}


def _refuse_doubles(folders: Sequence[Path]) -> None:
    """SpecError for a file that two folders have: ``import`` finds one of them, whichever."""
    folder_of: dict[str, Path] = {}
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.glob("*.py")):
            other = folder_of.setdefault(path.stem, folder)
            if other != folder and path.stem not in _COMMON:
                raise SpecError(
                    f"{other.name} and {folder.name} both have a {path.name}",
                    where=str(path),
                    expected="one file of a name in all --path folders: they are imported by it",
                    fix=f"mv {path} {path.with_stem('my_' + path.stem)}",
                )


def _word(kind: str) -> str:
    return _KINDS[kind].word if kind in _KINDS else "suite"


def _entry_point_folders() -> list[Path]:
    """Packages that distributions name under the entry-point group ``scaleproof.paths``."""
    folders = []
    for point in entry_points(group="scaleproof.paths"):
        spec = importlib.util.find_spec(point.value)  # a top-level package: found, not imported
        folders += [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return folders
