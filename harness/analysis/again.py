"""The command that measures a case again as it was, or with one thing changed."""

import shlex
from collections.abc import Mapping

from harness.cases import CaseSpec, Device, Settings

#: Parts of a case that the command states by other words, or that follow from where it runs.
_STATED = {
    "strategy", "model", "size", "mode", "world_size", "nodes", "device", "compressor", "stand_in",
    "first_device", "communicate",
}  # fmt: skip


def command(case: CaseSpec, settings: Settings, change: Mapping[str, str] | None = None) -> str:
    """``scaleproof run FAMILY --cpus N --set ...``: mode, knobs, engine and nodes are kept.

    ``change`` are settings in place of the case's own.
    """
    unit = "--gpus" if case.device is Device.CUDA else "--cpus"
    words = ["scaleproof", "run", case.family, unit, str(case.world_size)]
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
    differing = {k: v for k, v in case.series.items() if k not in _STATED}
    if case.backend == case.usual_backend:
        differing.pop("backend")
    for name, value in {**differing, **(change or {})}.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)
