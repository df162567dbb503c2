"""The options that both programs share, and the site, files and folders they resolve to."""

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
from harness.interface.offered import OPTIONS, Option, from_environment
from harness.launch import cluster


def add_to(parser: argparse.ArgumentParser, *, cases: bool) -> None:
    """The options under their short names; what is not given is taken from the environment."""
    group = parser.add_argument_group("where and how to measure")
    for option in OPTIONS:
        usual = from_environment(option)
        if option.cases and not cases:
            parser.set_defaults(**{option.name.replace("-", "_"): option.kwargs.get("default")})
            continue
        text = advanced(parser, option.help) if option.advanced else option.help
        group.add_argument(f"--{option.name}", help=text, **{**option.kwargs, "default": usual})


def advanced(parser: argparse.ArgumentParser, text: str) -> str:
    """Return the help text of an advanced option, which only ``--help-all`` shows."""
    return text if getattr(parser, "shows_all", True) else argparse.SUPPRESS


def add_results(parser: argparse.ArgumentParser) -> None:
    """``--results`` as a Path, for verbs that read what others have measured."""
    parser.add_argument(
        "--results",
        type=Path,
        default=usual_results(),
        metavar="DIR",
        help="where runs and the history are (default: results)",
    )


def usual_results() -> Path:
    """Where runs are written if no option says so."""
    return Path(results_of_environment() or "results")


def results_of_environment() -> str | None:
    """``SCALEPROOF_RESULTS``, if it is set."""
    folder: str | None = from_environment(_option("results"))
    return folder


def add_path(parser: argparse.ArgumentParser) -> None:
    """``--path``, for verbs that look up what a user's files add."""
    option = _option("path")
    usual = from_environment(option)
    parser.add_argument("--path", help=option.help, **{**option.kwargs, "default": usual})


def _option(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def seconds(text: str | None, option: str = "time-budget") -> float | None:
    """``330``, ``330s``, ``5m`` or ``1h`` in seconds, as ``option`` says; None stays None."""
    if text is None:
        return None
    length = length_s(text)
    if length is None:
        raise SpecError(f"--{option} {text}", expected="330, 330s, 5m or 1h", fix=f"--{option} 5m")
    if not length:
        raise SpecError(f"--{option} {text}", expected="some time", fix=f"--{option} 5m")
    return length


def moment(text: str) -> datetime.datetime:
    """A time with its zone; UTC without one."""
    try:
        given = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise SpecError(
            f"--given {text!r} is no time", expected="2026-11-25T09:00Z", fix="date -u +%FT%TZ"
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=datetime.UTC)


def catalogue(paths: Sequence[str], suites: Sequence[Path] = ()) -> Catalogue:
    """Everything that can be named, with the user's folders."""
    return Catalogue([Path(path) for path in paths], suites)


def site(values: Mapping[str, Any], catalogue: Catalogue, *, elsewhere: bool = False) -> Site:
    """The site that the options ask for; ``elsewhere``: ranks will not run on this machine."""
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
    """The settings in the cluster file for the engine that is asked for."""
    engine = values.get("engine") or "local"
    file = values.get("cluster")
    if engine not in catalogue.entries["engines"]:
        return {}  # ``resolve`` says so
    return cluster.cluster_settings(
        Path(file) if file else None, engine, catalogue.entries["engines"]
    )


def settings(values: Mapping[str, Any], site: Site, argv: Sequence[str]) -> Settings:
    """How a run is made, for both programs."""
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
        setups=setups(values),
    )


def setups(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pinned environment's interpreter; SpecError where it is none."""
    given = values.get("control")
    if not given:
        return ()
    python = shutil.which(given)
    if python is None:
        raise SpecError(
            f"--control {given}: no such program",
            expected="the python of an environment",
            fix="python -m venv pinned && pinned/bin/pip install scaleproof torch==VERSION",
        )
    return ((PINNED, str(Path(python).absolute())),)


#: Settings that a resumed run may be given anew, with what they are where nothing is said.
_AGAIN: Mapping[str, object] = {
    "strict": False, "lenient": False, "timeline": True, "fabric": True, "packed": True,
    "budget_s": None,
}  # fmt: skip


def resumed(old: Settings, given: Settings) -> tuple[Settings, list[str]]:
    """The settings of a run that goes on: its own, but for what was said anew; notes of that."""
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
    """The named file's rules, else those of every ``thresholds.toml`` beside the suites.

    ``expected`` names references of this machine's hardware class, which become rules as well.
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
