"""The catalogue of names that a case can use: strategies, models, compressors, engines and suites.

Each file adds one entry. Its *literal head* (the docstring and upper-case literals such as
SUPPORTS, KNOBS and SIZES) is read with ``ast``. Nothing is imported, so listing and collecting
never load torch or a user's code.
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
    """A kind of catalogue entry.

    ``word`` is its name in messages, and ``folder`` is the folder of the package with its files.
    ``mark`` is the literal that a file must have to be an entry of this kind.
    """

    word: str
    folder: str
    mark: str


#: The kinds of entries that a case can name.
_KINDS = {
    "strategies": EntryKind("strategy", "training/strategies", "SUPPORTS"),
    "models": EntryKind("model", "training/models", "SIZES"),
    "compressors": EntryKind("compressor", "training/compressors", "ERROR_BOUND"),
    "inputs": EntryKind("input", "training/inputs", "INPUT"),
    "engines": EntryKind("engine", "launch/engines", "ENGINE"),
}
#: All kinds of entries that ``list`` shows.
KINDS = (*_KINDS, "suites")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The literal head of one file. ``head`` maps upper-case names to their literal values."""

    kind: str
    name: str
    path: Path
    doc: str
    head: Mapping[str, Json] = field(default_factory=dict)

    @property
    def shipped(self) -> bool:
        """Whether the file belongs to this package."""
        return self.path.is_relative_to(PACKAGE)

    @property
    def module(self) -> str:
        """The module to import: a dotted name in this package, or the path of a user's file."""
        if not self.shipped:
            return str(self.path)
        return ".".join(("harness", *self.path.relative_to(PACKAGE).with_suffix("").parts))

    @functools.cached_property
    def supports(self) -> Supports:
        """The literal SUPPORTS of a strategy. Raises SpecError for mistakes in it."""
        return facts(Supports, self.head["SUPPORTS"], f"{self.path}: SUPPORTS")

    @property
    def measured_by(self) -> str:
        """The strategy with which the learning of this strategy is compared.

        It is empty if only the speed of this strategy matters. It is also empty for a strategy of
        this package that names itself as ``beside``.
        """
        beside = self.supports.beside
        return "" if self.shipped and beside == self.name else beside

    @functools.cached_property
    def engine(self) -> EngineFacts:
        """The literal ENGINE of an engine. Raises SpecError for mistakes in it."""
        return facts(EngineFacts, self.head["ENGINE"], f"{self.path}: ENGINE")

    def check(self) -> None:
        """Raise SpecError with all mistakes in the head of a strategy or an engine."""
        if self.kind == "strategies":
            _ = self.supports
        elif self.kind == "engines":
            _ = self.engine

    @property
    def knobs(self) -> Mapping[str, Json]:
        """The defaults of the knobs.

        The knob ``version`` is one of them, so results of different versions are not compared.
        """
        return {"version": 1, **self.head.get("KNOBS", {})}


class Catalogue:
    """All entries that a case can name, from the package, entry points and ``--path`` folders."""

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
        """The entries by kind and name.

        Raises SpecError if a user's file has the name of an entry of the package.
        """
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
        """Add the entry of a file if its head has the mark of a kind.

        Raise SpecError if an entry of this kind already has the name.
        """
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
        """Return the entry with this name.

        Raise SpecError with the most similar names if there is none.
        """
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
        """Return the files that a case names, by kind.

        Files of this package are named by module, because the package may be in a different folder
        on each node. A user's files are named by path, which must be the same on all nodes.
        """
        if case.script:
            return {}
        return {entry.kind: entry.module for entry in self.entries_of(case)}

    def entries_of(self, case: CaseSpec) -> list[Entry]:
        """Return the entries that a case names.

        They are its strategy, model, input and, if there is one, compressor.
        """
        names = {"strategies": case.strategy, "models": case.model, "inputs": case.data}
        if case.compressor is not None:
            names["compressors"] = case.compressor
        return [self.get(kind, name) for kind, name in names.items()]

    def normalise(self, case: CaseSpec) -> CaseSpec:
        """Check the case and return its canonical form.

        Knobs with default values are dropped, and simulations are labelled.
        """
        if case.script:
            return case  # only the command of a user's script is known, so nothing can be checked
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
        # A single node uses no network, so the network knobs of the engine have no effect.
        if len(case.nodes) == 1:
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
        """Check the knobs, and return those that differ from the defaults of these files."""
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
        """Return the knobs of the engine's network that this case sets, with their values."""
        engines = self.entries["engines"]
        return tuple(
            (key, knob) for key, knob in case.knobs.items() if key.partition(".")[0] in engines
        )

    def twin(self, case: CaseSpec, number: int = 0) -> CaseSpec:
        """Return the twin of a case for the correctness check.

        The twin has the same strategy, knobs, world and precision, but usually the smallest model
        size and the batch of that size. ``number`` is the index of the first candidate that the
        strategy accepts; an agent has reported it.
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


#: Names of files that several folders may have, because no file imports them by name.
_COMMON = {"__init__", "conftest", "setup"}


def _refuse_doubles(folders: Sequence[Path]) -> None:
    """Raise SpecError if two folders have a file of the same name.

    ``import`` would find only one of them.
    """
    folder_of: dict[str, Path] = {}
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.glob("*.py")):
            other = folder_of.setdefault(path.stem, folder)
            if other != folder and path.stem not in _COMMON:
                raise SpecError(
                    f"{other.name} and {folder.name} both have a file {path.name}",
                    where=str(path),
                    expected="unique names in all --path folders: files are imported by name",
                    fix=f"mv {path} {path.with_stem('my_' + path.stem)}",
                )


def _word(kind: str) -> str:
    """Return the name of a kind in messages, in the singular."""
    return _KINDS[kind].word if kind in _KINDS else "suite"


def _entry_point_folders() -> list[Path]:
    """Return the folders of all packages in the entry-point group ``scaleproof.paths``."""
    folders = []
    for point in entry_points(group="scaleproof.paths"):
        # ``find_spec`` does not import a top-level package.
        spec = importlib.util.find_spec(point.value)
        folders += [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return folders
