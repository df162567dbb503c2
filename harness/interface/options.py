"""The options that ``scaleproof`` and pytest share, and the site and settings that they give."""

import argparse
import datetime
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.documents import Json
from harness.base.errors import SpecError
from harness.base.formatting import length_s
from harness.cases import Catalogue, Device, Settings, Site, Threshold
from harness.cases.recipes import PINNED
from harness.cases.rules import load_thresholds
from harness.cases.site import resolve
from harness.host import machine, secrets
from harness.interface.offered import OPTIONS, Need, Option, from_environment
from harness.launch import cluster


def add_to(parser: argparse.ArgumentParser, *has: Need) -> None:
    """Add the shared options of a command that ``has`` these properties, under their short names.

    Defaults come from the environment.
    """
    group = parser.add_argument_group("where and how to measure")
    for option in OPTIONS:
        usual = from_environment(option)
        if option.needs is not None and option.needs not in has:
            parser.set_defaults(**{option.name.replace("-", "_"): option.kwargs.get("default")})
            continue
        text = advanced(parser, option.help) if option.advanced else option.help
        group.add_argument(f"--{option.name}", help=text, **{**option.kwargs, "default": usual})


def advanced(parser: argparse.ArgumentParser, text: str) -> str:
    """Return the help text of an advanced option, which only ``--help-all`` shows."""
    return text if getattr(parser, "shows_all", True) else argparse.SUPPRESS


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add ``--results`` as a Path, for commands that read existing runs."""
    parser.add_argument(
        "--results",
        type=Path,
        default=usual_results(),
        metavar="DIR",
        help="folder with the runs and the history (default: results)",
    )


def usual_results() -> Path:
    """Return the folder that runs are written to without an option."""
    return Path(results_of_environment() or "results")


def results_of_environment() -> str | None:
    """Return the value of ``SCALEPROOF_RESULTS``, or None."""
    folder: str | None = from_environment(_option("results"))
    return folder


def add_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--path``, for commands that look up names in the user's files."""
    option = _option("path")
    usual = from_environment(option)
    parser.add_argument("--path", help=option.help, **{**option.kwargs, "default": usual})


def _option(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def seconds(text: str | None, option: str = "time-budget") -> float | None:
    """Return ``330``, ``330s``, ``5m`` or ``1h`` in seconds; None stays None.

    Raise SpecError, which names ``option``, for anything else.
    """
    if text is None:
        return None
    length = length_s(text)
    if length is None:
        raise SpecError(f"--{option} {text}", expected="330, 330s, 5m or 1h", fix=f"--{option} 5m")
    if not length:
        raise SpecError(f"--{option} {text}", expected="a time above 0", fix=f"--{option} 5m")
    return length


def moment(text: str) -> datetime.datetime:
    """Return a time with its time zone, which is UTC if ``text`` has none.

    Raise SpecError if ``text`` is not in ISO format.
    """
    try:
        given = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise SpecError(
            f"--given {text!r} is not a time", expected="2026-11-25T09:00Z", fix="date -u +%FT%TZ"
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=datetime.UTC)


def catalogue(paths: Sequence[str], suites: Sequence[Path] = ()) -> Catalogue:
    """Return the catalogue of all names, including the names in the user's folders."""
    return Catalogue([Path(path) for path in paths], suites)


def site(values: Mapping[str, Any], catalogue: Catalogue, *, elsewhere: bool = False) -> Site:
    """Return the site that the options describe.

    ``elsewhere`` says that ranks will not run on this machine.
    """
    resolved = resolve(
        gpus=values.get("gpus"),
        cpus=values.get("cpus"),
        nodes=values.get("nodes") or "1",
        engine=values.get("engine") or "local",
        shared_gpu=bool(values.get("shared-gpu")),
        one_machine=bool(engine_settings(values, catalogue).get("one_machine")),
        elsewhere=elsewhere,
        known_engines=catalogue.entries["engines"],
    )
    return replace(resolved, every_rung=bool(values.get("every-rung")))


def engine_settings(values: Mapping[str, Any], catalogue: Catalogue) -> Mapping[str, Json]:
    """Return the settings of the chosen engine in the cluster file."""
    engine = values.get("engine") or "local"
    file = values.get("cluster")
    if engine not in catalogue.entries["engines"]:
        return {}  # ``resolve`` reports the unknown engine
    return cluster.cluster_settings(
        Path(file) if file else None, engine, catalogue.entries["engines"]
    )


def settings(values: Mapping[str, Any], site: Site, argv: Sequence[str]) -> Settings:
    """Return the settings of a run from the values of the shared options."""
    return Settings(
        engine=site.engine,
        nodes=site.nodes,
        device=site.device,
        cluster=values["cluster"],
        budget_s=seconds(values["time-budget"]),
        strict=values["worst-pair"],
        timeline=not values["no-timeline"],
        fabric=not values["no-fabric"],
        argv=secrets.masked_words(argv),
        nonce=values["nonce"] or "",
        packed=not values["one-by-one"],
        shared_gpu=site.shared_gpu,
        outline=site.device is Device.CPU and not values["operators"],
        paths=tuple(str(Path(p).resolve()) for p in values["path"]),
        data=tuple(values["data"]),
        writes=tuple(values["writes"]),
        setups=setups(values),
    )


def setups(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the setup of the pinned environment of ``--control``, or nothing without the option.

    Raise SpecError if there is no such interpreter.
    """
    given = values.get("control")
    if not given:
        return ()
    python = shutil.which(given)
    if python is None:
        raise SpecError(
            f"--control {given}: there is no such program",
            expected="the Python interpreter of an environment",
            fix="python -m venv pinned && pinned/bin/pip install scaleproof torch==VERSION",
        )
    return ((PINNED, str(Path(python).absolute())),)


#: Settings that may change when a run is resumed, with their defaults.
_AGAIN: Mapping[str, object] = {
    "strict": False, "lenient": False, "require_verdict": False, "timeline": True, "fabric": True,
    "packed": True, "budget_s": None,
}  # fmt: skip


def resumed(old: Settings, given: Settings) -> tuple[Settings, list[str]]:
    """Return the settings of a resumed run and a note on each that changes.

    These are the old settings of the run, except for settings in ``_AGAIN`` that the user changes.
    """
    changes = []
    for name, usual in _AGAIN.items():
        was, now = getattr(old, name), getattr(given, name)
        if now not in (usual, was):
            old = replace(old, **{name: now})
            changes.append(f"resumed with {name} = {now}, begun with {was}")
    return old, changes


def thresholds(
    file: str | None, beside: Sequence[Path], catalogue: Catalogue, expected: str | None = None
) -> tuple[Threshold, ...]:
    """Return the thresholds of a file, or else of every ``thresholds.toml`` next to the suites.

    ``expected`` is a references file or folder; the references of this machine's hardware class
    become thresholds as well.
    """
    if file is not None:
        rules = list(load_thresholds(Path(file), catalogue))
    else:
        paths = [p / "thresholds.toml" for p in dict.fromkeys(beside)]
        rules = [
            rule for path in paths if path.is_file() for rule in load_thresholds(path, catalogue)
        ]
    if expected is not None:
        from harness.analysis.judging import expected as references

        rules += references.rules(Path(expected), machine.detect().hardware_class)
    return tuple(rules)
