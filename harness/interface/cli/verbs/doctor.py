"""``doctor``: what on this machine would spoil a measurement."""

import argparse
from collections.abc import Mapping

from harness.base.documents import to_doc
from harness.base.errors import Exit
from harness.host import admission, doctor
from harness.host.admission import Finding, Level
from harness.interface.cli.answer import Answer, Asked
from harness.launch.engine import make
from harness.spec import Catalogue, Entry

HELP = dict(doctor="check this machine for anything that spoils measurements; changes nothing")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    """Takes nothing."""


def act(asked: Asked) -> Answer:
    installed, host = doctor.examine(), admission.examine(on_gpus=True)
    checks = [*installed, *host, *engines(Catalogue().entries["engines"])]
    wide = max(len(c.check) for c in checks)
    lines = []
    for c in checks:
        lines.append(f" {c.level:<4}  {c.check:<{wide}}  {c.text}")
        if c.advice:
            lines.append(f"       {'':<{wide}}  try: {c.advice}")
    broken = sum(c.level is Level.BAD for c in installed)
    unfit = sum(c.level is Level.BAD for c in host)
    warned = sum(c.level is Level.WARN for c in checks)
    lines.append(f" {len(checks)} checks, {warned} warnings, {broken + unfit} problems")
    if unfit:
        lines.append(" a run now would end INCONCLUSIVE: noisy host")
    exit_ = Exit.FAILED if broken else Exit.INCONCLUSIVE if unfit else Exit.PASSED
    return Answer(document={"checks": to_doc(tuple(checks))}, lines=lines, exit=exit_)


def engines(known: Mapping[str, Entry]) -> list[Finding]:
    """Which engines can be used from here, and what the others lack."""
    out = []
    for name, entry in known.items():
        here = make(entry).probe()
        told = f"here {here.version}".strip() if here.available else f"not here: {here.reason}"
        out.append(Finding(check=f"engine {name}", level=Level.OK, text=told))
    return out
