"""``sign``: vouch for a run with the site's key."""

import argparse
import os
from pathlib import Path

from harness.analysis.verify import verify
from harness.base.documents import to_doc
from harness.base.errors import RecordError
from harness.interface.cli.answer import Answer, Asked
from harness.record import signature
from harness.record.store import load

HELP = dict(sign="sign a complete run with an ed25519 key of OpenSSH")


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("run", type=Path, help="the folder of a run")
    sub.add_argument(
        "--key", type=Path, required=True, metavar="FILE",
        help="the private key; SCALEPROOF_PASSPHRASE opens it",
    )  # fmt: skip


def act(asked: Asked) -> Answer:
    """Only what verifies is signed."""
    folder: Path = asked.options.run
    if found := verify(load(folder), folder).differences:
        raise RecordError(
            f"this run does not verify: {found[0]}", where=str(folder),
            fix=f"scaleproof verify {folder}",
        )  # fmt: skip
    made = signature.sign(folder, asked.options.key, os.environ.get("SCALEPROOF_PASSPHRASE"))
    lines = [
        f" signed {made.head[:16]}, the last link of the chain",
        f" by {made.key}",
        f" check  scaleproof verify {folder} --key PUBLIC_KEY",
    ]
    return Answer(document=to_doc(made), lines=lines)
