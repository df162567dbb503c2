"""Options of commands that plan for hardware that is not here, and the site it gives."""

import argparse
from collections.abc import Callable
from pathlib import Path

from _pytest.mark.expression import Expression

from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base.errors import SpecError
from harness.cases import Ablation, Device, Site
from harness.host import devices
from harness.host.devices import Hardware
from harness.interface import options

#: The tier that ``pytest suites/`` measures where nothing else is said.
USUAL_TIER = "not nightly and not acceptance"


def on(text: str | None) -> Hardware | None:
    """Reads the hardware that ``--on`` names: known devices, a file that states them, or those of a
    run.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or path.name == "record.json":
        run = load(path)
        refuse_unsealed(run, path if path.is_dir() else path.parent)
        return devices.of_machine(path.name, run.machine, run.settings.nodes)
    return devices.parse(text)


def site_of(hardware: Hardware) -> Site:
    """The site that recipes are asked with for machines that are not here."""
    return Site(
        device=Device.CUDA,
        backend="nccl",
        nodes=hardware.nodes,
        gpu_memory_gib=hardware.machine.gpu_memory_gib,
    )


def tier(marks: str) -> Callable[[frozenset[str]], bool]:
    """Whether marks meet an expression, as pytest reads it."""
    try:
        expression = Expression.compile(marks)
    except SyntaxError as error:
        raise SpecError(f"-m {marks}: {error}", expected="as of pytest", fix="-m smoke") from None

    def chosen(names: frozenset[str]) -> bool:
        def has(name: str, /, **_: str | int | bool | None) -> bool:
            return name in names

        return expression.evaluate(has)

    return chosen


def add_measuring_options(sub: argparse.ArgumentParser, *, cases: bool) -> None:
    """Add the options of commands that measure; with ``cases`` those of cases as well."""
    options.add_to(sub, cases=cases)
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field or knob of the case"
        if cases
        else options.advanced(sub, "a knob of the engine"),
    )
    if cases:
        sub.add_argument(
            "--ablate",
            action="append",
            default=[],
            choices=tuple(Ablation),
            help=options.advanced(sub, "also measure the largest world size without this part"),
        )
