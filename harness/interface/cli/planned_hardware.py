"""Options of commands that plan for other hardware, and the site of this hardware."""

import argparse
from collections.abc import Callable
from pathlib import Path

from _pytest.mark.expression import Expression

from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base import shipped
from harness.base.errors import SpecError
from harness.cases import Device, Site
from harness.host import devices
from harness.host.devices import Hardware
from harness.interface.cli.measuring import add_measuring_options

#: Marks expression of the suites that are measured by default, as in ``pytest suites/``.
USUAL_TIER = "not nightly and not acceptance"


def add_hardware_options(sub: argparse.ArgumentParser) -> None:
    """Add the target and the hardware to plan for."""
    sub.add_argument(
        "target",
        nargs="?",
        type=shipped.suite,
        default="suites",
        help="a case, a suite folder, file.py or file.py::recipe",
    )
    add_measuring_options(sub, "cases")
    sub.add_argument(
        "--on",
        metavar="HARDWARE",
        help="other machines: 8xh100, 64x8xh200 (nodes x GPUs), a file or a run",
    )


def on(text: str | None) -> Hardware | None:
    """Return the hardware that ``--on`` names, or None without the option.

    ``--on`` takes the names of known devices, a file, or a run that was measured on the hardware.
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
    """Return the site that describes other hardware to recipes."""
    return Site(
        device=Device.CUDA,
        backend="nccl",
        nodes=hardware.nodes,
        gpu_memory_gib=hardware.machine.gpu_memory_gib,
    )


def tier(marks: str) -> Callable[[frozenset[str]], bool]:
    """Return a function that tells whether a set of marks matches an expression of pytest.

    Raise SpecError for an invalid expression.
    """
    try:
        expression = Expression.compile(marks)
    except SyntaxError as error:
        raise SpecError(
            f"-m {marks}: {error}", expected="an expression as for pytest -m", fix="-m smoke"
        ) from None

    def chosen(names: frozenset[str]) -> bool:
        def has(name: str, /, **_: str | int | bool | None) -> bool:
            return name in names

        return expression.evaluate(has)

    return chosen
