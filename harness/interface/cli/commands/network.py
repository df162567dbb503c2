"""The command ``network``: check, time and judge collectives between ranks."""

import argparse
from collections.abc import Mapping
from typing import Any

from harness.base.errors import SpecError
from harness.cases import Site
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.measure.confirming import USUAL
from harness.measure.sweeper import Sweeper
from harness.record import RunRecord

HELP = {
    "network": "check, time and judge every collective between the ranks",
}
EXAMPLES = {
    "network": (
        "network --gpus 8",
        "network --cpus 2 --sweeps 2",
    ),
}


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "network": (RunRecord,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    measuring.add_measuring_options(sub, "records")
    sub.add_argument(
        "--sweeps",
        type=measuring.positive,
        default=USUAL,
        metavar="N",
        help=f"sweeps to run (default: {USUAL})",
    )


def act(asked: Asked) -> Answer:
    """Sweep every world of the site and judge it; a FAIL is measured again before it counts."""
    catalogue, site = measuring.site(asked)
    needs_two(site)
    knobs = catalogue.checked(
        [catalogue.get("engines", site.engine)], measuring.settings(asked), asked.command
    )
    with measuring.session(asked, catalogue, site) as session:
        Sweeper(session).measure(site, knobs, asked.options.sweeps)
    return measuring.judged(session, session.save(complete=True), asked)


def needs_two(site: Site) -> None:
    """Raise SpecError for a site of one rank."""
    if site.world_size < 2:
        raise SpecError(
            "a single rank does not communicate",
            expected="at least 2 ranks: --cpus 2 or --gpus 2",
            fix="--cpus 2",
        )
