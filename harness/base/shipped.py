"""Find the default suites and the sample runs, in this repository or in the installed package."""

from pathlib import Path

#: The folder of this package. In a repository, the suites lie beside it.
PACKAGE = Path(__file__).parents[1]
#: The names of both, as in the repository, and their folders in the wheel.
_SHIPPED = {"suites": "shipped/suites", "results/samples": "shipped/samples"}


def folder(name: str) -> Path | None:
    """Return the folder that the repository calls ``name``, or None if it is missing."""
    places = (PACKAGE.parent / name, PACKAGE / _SHIPPED[name])
    return next((place for place in places if place.is_dir()), None)


def suite(target: str) -> str:
    """Return a target of the command line with the default suites in place of a missing ``suites``.

    ``target`` is ``suites``, ``suites/test_ddp.py`` or ``suites/test_ddp.py::test_weak``. Other
    targets, and those of a folder ``suites`` that exists here, are returned unchanged.
    """
    path, colons, function = target.partition("::")
    first, *others = Path(path).parts or ("",)
    if first != "suites" or Path(first).exists() or (ours := folder("suites")) is None:
        return target
    return f"{ours.joinpath(*others)}{colons}{function}"
