"""Build the command that measures a case again, unchanged or with other settings."""

import itertools
import shlex
from collections.abc import Collection, Mapping, Sequence

from harness.cases import CaseSpec, Device, Mode, Settings

#: Fields of a case that need no ``--set``. Other options state these fields, or the machine
#: determines them.
_STATED = {
    "strategy", "model", "size", "mode", "world_size", "nodes", "device", "compressor", "stand_in",
    "first_device", "communicate",
}  # fmt: skip

#: Options of a script's scaling sweep: its first world size, and the numbers of steps.
_LADDER = frozenset({"--first-rung", "--steps", "--warm-up"})
#: Options that say what judges the results, and where they are stored. The last ones have no value.
_JUDGING = frozenset({"--thresholds", "--results", "--no-fabric", "--no-timeline"})
_ALONE = frozenset({"--no-fabric", "--no-timeline"})


def command(case: CaseSpec, settings: Settings, change: Mapping[str, str] | None = None) -> str:
    """Return the command ``scaleproof run FAMILY --cpus N --set ...`` for a case.

    The command has the scaling mode, options, engine and nodes of the case. ``change`` holds
    settings that replace settings of the case.
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
    words += _typed(settings.argv, _JUDGING)
    if case.script:
        return shlex.join([*words, *_of_script(case, settings)])
    differing = {key: series for key, series in case.series.items() if key not in _STATED}
    if case.backend == case.usual_backend:
        differing.pop("backend")
    for name, value in {**differing, **(change or {})}.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def changed(argv: Sequence[str], **options: str) -> str:
    """Return the user's command with new values for these options (``first_rung="2"``).

    The command of a script, which follows ``--``, is not changed.
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
    """Return the options for a user's script, followed by the script's command."""
    words = [] if case.mode is Mode.WEAK else ["--mode", case.mode]
    if case.samples_per_step:
        words += ["--samples-per-step", str(case.samples_per_step)]
    if case.accepted:
        words += ["--accept", case.accepted]
    if settings.fresh:
        words += ["--fresh"]
    words += ["--clean", *settings.clean] if settings.clean else []
    for option, paths in (("--data", settings.data), ("--writes", settings.writes)):
        words += [word for path in paths for word in (option, path)]
    return [*words, *_typed(settings.argv, _LADDER), "--", *shlex.split(case.script)]


def _typed(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """Return these options as the user typed them, because cases do not contain them."""
    options = list(itertools.takewhile(lambda word: word != "--", argv))
    kept: list[str] = []
    for place, word in enumerate(options):
        name, equals, _ = word.partition("=")
        if name in names:
            kept += [word] if equals or name in _ALONE else options[place : place + 2]
    return kept
