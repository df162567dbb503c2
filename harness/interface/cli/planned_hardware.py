"""Options of commands that plan for hardware that is not here, and the site it gives."""

import argparse
from collections.abc import Callable
from pathlib import Path

from _pytest.mark.expression import Expression

from harness.analysis.reading import load
from harness.analysis.verify import refuse_unsealed
from harness.base.errors import SpecError
from harness.cases import Device, Site
from harness.host import devices
from harness.host.devices import Hardware
from harness.interface.cli.measuring import add_measuring_options

#: The tier that ``pytest suites/`` measures where nothing else is said.
USUAL_TIER = "not nightly and not acceptance"


def add_hardware_options(sub: argparse.ArgumentParser) -> None:
    """Adds the target, and the hardware to plan for."""
    sub.add_argument(
        "target",
        nargs="?",
        default="suites",
        help="a case, a suite folder, file.py or file.py::recipe",
    )
    add_measuring_options(sub, cases=True)
    sub.add_argument(
        "--on",
        metavar="HARDWARE",
        help="machines that are not here: 8xh100, 64x8xh200 (nodes x GPUs), a file, a run",
    )


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
