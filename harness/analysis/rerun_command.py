"""The command that measures a case again as it was, or with one thing changed."""

import itertools
import shlex
from collections.abc import Mapping, Sequence

from harness.cases import CaseSpec, Device, Mode, Settings

#: Parts of a case that the command states by other words, or that follow from where it runs.
_STATED = {
    "strategy", "model", "size", "mode", "world_size", "nodes", "device", "compressor", "stand_in",
    "first_device", "communicate",
}  # fmt: skip

#: Of a script's ladder: where it begins, and how many steps are timed.
_LADDER = frozenset({"--first-rung", "--steps", "--warm-up"})


def command(case: CaseSpec, settings: Settings, change: Mapping[str, str] | None = None) -> str:
    """``scaleproof run FAMILY --cpus N --set ...``: mode, knobs, engine and nodes are kept.

    ``change`` are settings in place of the case's own.
    """
    unit = "--gpus" if case.device is Device.CUDA else "--cpus"
    what = "--script" if case.script else case.family
    words = ["scaleproof", "run", what, unit, str(case.world_size)]
    if settings.engine != Settings().engine:
        words += ["--engine", settings.engine]
    if len(case.nodes) > 1:
        words += ["--nodes", "+".join(map(str, case.nodes))]
    if settings.cluster:
        words += ["--cluster", settings.cluster]
    if settings.shared_gpu:
        words += ["--shared-gpu"]
    for folder in settings.paths:
        words += ["--path", folder]
    if case.script:
        return shlex.join([*words, *_of_script(case, settings)])
    differing = {key: series for key, series in case.series.items() if key not in _STATED}
    if case.backend == case.usual_backend:
        differing.pop("backend")
    for name, value in {**differing, **(change or {})}.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def changed(argv: Sequence[str], **options: str) -> str:
    """The words that were typed, with other values of these options (``first_rung="2"``); those of
    a script, behind ``--``, stay.
    """
    ours = list(itertools.takewhile(lambda word: word != "--", argv))
    script = argv[len(ours) :]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        places = [i for i, word in enumerate(ours) if word.partition("=")[0] == option]
        for place in reversed(places):
            del ours[place : place + (1 if "=" in ours[place] else 2)]
        ours += [option, value]
    return shlex.join([*ours, *script])


def _of_script(case: CaseSpec, settings: Settings) -> list[str]:
    """Options of a user's own script, and its command as it was typed."""
    words = [] if case.mode is Mode.WEAK else ["--mode", case.mode]
    if case.samples_per_step:
        words += ["--samples-per-step", str(case.samples_per_step)]
    if case.accepted:
        words += ["--accept", case.accepted]
    if settings.fresh:
        words += ["--fresh"]
    for option, paths in (("--clean", settings.clean), ("--data", settings.data)):
        words += [option, *paths] if paths else []
    return [*words, *_typed(settings.argv), "--", *shlex.split(case.script)]


def _typed(argv: Sequence[str]) -> list[str]:
    """Options of a script's ladder, which its cases do not know, as they were typed."""
    options = list(itertools.takewhile(lambda word: word != "--", argv))
    kept: list[str] = []
    for place, word in enumerate(options):
        name, equals, _ = word.partition("=")
        if name in _LADDER:
            kept += [word] if equals else options[place : place + 2]
    return kept
