"""The commands ``verify`` (recompute a run from its samples) and ``accept sign`` (sign a run)."""

import argparse
import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis import verify_cache
from harness.analysis.reading import load
from harness.analysis.verify import Verification, rejudge, verify
from harness.base.documents import to_doc
from harness.base.errors import Exit, RecordError, SpecError
from harness.cases.rules import load_thresholds
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import tables, text
from harness.interface.report.tables import unmet
from harness.record import RunRecord, Verdict, chain, signature
from harness.record.outcome import exit_status
from harness.record.signature import Signature

HELP = {
    "verify": "recompute every figure and verdict of a run from its stored samples",
    "accept sign": "sign a complete run with an ed25519 key of OpenSSH",
}
EXAMPLES = {
    "verify": (
        "verify RUN",
        "verify RUN --json",
    ),
    "accept sign": (
        "accept sign RUN --key ~/.ssh/id_ed25519",
        "accept sign RUN --key acceptance.key --json",
    ),
}


class Verified(TypedDict):
    """A Verification, with the verdicts under the thresholds of ``--thresholds``."""

    num_launches: int
    num_samples: int
    num_verdicts: int
    differences: Sequence[str]
    num_traceless: int
    num_links: int
    head: str
    signer: str
    worded: bool
    judged_anew: Sequence[Verdict]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "accept sign": (Signature,),
    "verify": (Verification, Verified),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("run", type=Path)
    if command == "accept sign":
        sub.add_argument(
            "--key",
            type=Path,
            required=True,
            metavar="FILE",
            help="the private key; SCALEPROOF_PASSPHRASE is its passphrase",
        )
        return
    sub.add_argument(
        "--thresholds", type=Path, metavar="FILE", help="also judge the run by these thresholds"
    )
    sub.add_argument(
        "--key", type=Path, metavar="FILE", help="the public key of the expected signature"
    )
    sub.add_argument("--nonce", metavar="TEXT", help="the nonce that was issued before the run")
    sub.add_argument(
        "--given",
        metavar="TIME",
        help="when the nonce was issued (2026-11-25T09:00Z): show how many runs fit since then",
    )
    options.add_path(sub)


def act(asked: Asked) -> Answer:
    """Return the differences. If there are none, add the verdicts under other thresholds."""
    if asked.command == "accept sign":
        return _sign(asked.options.run, asked.options.key)
    _refuse_no_nonce(asked)
    path, rules = asked.options.run, asked.options.thresholds
    key = verify_cache.key_of(path)
    run = load(path)
    folder = path if path.is_dir() else path.parent
    verified = verify(run, folder)
    if verified.num_links and not verified.differences:
        verify_cache.keep(path, key)
    signer, unvouched = _vouched(asked, run, folder)
    verified = replace(verified, differences=(*verified.differences, *unvouched), signer=signer)
    exit_ = Exit.PASSED if verified.num_links and not verified.differences else Exit.FAILED
    lines = [*_sittings(folder), *_lines(run, verified)]
    lines += [] if verified.differences else _chances(run, folder, asked.options.given)
    answer = Answer(document=to_doc(verified), lines=lines, exit=exit_)
    if rules is None or verified.differences:
        return answer
    catalogue = options.catalogue(asked.options.path)
    anew = rejudge(run, load_thresholds(rules, catalogue))
    width = text.columns()
    judged = [*tables.verdict_lines(anew, width), *tables.counts(anew)]
    judged += unmet(anew, width)
    return replace(
        answer,
        document={**answer.document, "judged_anew": to_doc(anew.verdicts)},
        lines=[*answer.lines, "", f" judged again by {rules}:", *judged],
        exit=exit_status([verdict.counts for verdict in anew.verdicts]),
    )


def _refuse_no_nonce(asked: Asked) -> None:
    """Raise SpecError for an empty nonce, or for the time of a nonce without the nonce."""
    nonce, given = asked.options.nonce, asked.options.given
    if nonce == "" or (given and nonce is None):
        raise SpecError(
            "--nonce is empty" if nonce == "" else f"--given {given} needs --nonce",
            expected="the nonce that was issued before the run",
            fix=f"scaleproof verify {asked.options.run} --nonce TEXT",
        )


def _sign(folder: Path, key: Path) -> Answer:
    """Verify a run and sign it; raise RecordError if it does not verify."""
    if differences := verify(load(folder), folder).differences:
        raise RecordError(
            f"this run does not verify: {differences[0]}",
            where=str(folder),
            fix=f"scaleproof verify {folder}",
        )
    before = signature.signed(folder)
    signature_made = signature.sign(folder, key, os.environ.get("SCALEPROOF_PASSPHRASE"))
    lines = [
        f" signed {signature_made.head[:16]}, the last link of the chain",
        f" by {signature_made.key}",
        f" check  scaleproof verify {folder} --key PUBLIC_KEY",
    ]
    if before is not None and before.key != signature_made.key:
        lines.append(f" this replaces a signature by {before.key}")
    return Answer(document=to_doc(signature_made), lines=lines)


def _vouched(asked: Asked, run: RunRecord, folder: Path) -> tuple[str, list[str]]:
    """Return the key that signed the run, and the differences from the expected key and nonce."""
    signature_there = signature.signed(folder)
    wrong = []
    given = asked.options.given
    if given and datetime.datetime.fromisoformat(run.started_at) < options.moment(given):
        wrong.append(f"the run began at {run.started_at}, before the nonce was issued")
    if asked.options.nonce is not None and run.settings.nonce != asked.options.nonce:
        made_after = f"the nonce {run.settings.nonce!r}" if run.settings.nonce else "no nonce"
        wrong.append(f"this run has {made_after}; {asked.options.nonce!r} was expected")
    if signature_there is None:
        wrong += ["the run is not signed"] if asked.options.key is not None else []
        return "", wrong
    if reason := signature.holds(signature_there, run.head, asked.options.key):
        return "", [*wrong, reason]
    return signature_there.key, wrong


def _chances(run: RunRecord, folder: Path, given: str | None) -> list[str]:
    """Return lines on how many runs a site could have made with this nonce to select the best."""
    links = chain.read(folder)
    if given is None or not links or run.elapsed_s <= 0:
        return []
    ended = datetime.datetime.fromisoformat(links[-1].at)
    since_s = (ended - options.moment(given)).total_seconds()
    number = int(since_s / run.elapsed_s)
    if number < 2:
        return [" no second run of this length fits between the nonce and the end of this one"]
    return [
        f" {number} runs of this length fit between the nonce and the end of this one, so this may",
        " be the best of several. Require that the run begins right after the nonce is issued",
    ]


def _sittings(folder: Path) -> list[str]:
    """Return lines on interruptions of the run, whose causes the chain cannot show."""
    number = sum(link.kind is chain.Kind.SITTING for link in chain.read(folder))
    if not number:
        return []
    return [
        f" interrupted {number} time{'s' if number > 1 else ''}: launches in progress were"
        " repeated. The chain",
        " cannot show whether the run crashed or somebody stopped it to repeat a launch",
    ]


def _lines(run: RunRecord, verified: Verification) -> list[str]:
    without = len(run.launches) - verified.num_launches
    lines = [
        f" recomputed {verified.num_launches} launches from {verified.num_samples} ranks' samples,"
        f" {verified.num_verdicts} verdicts",
        f" recorded with {run.software.get('scaleproof', 'n/a')}, read with schema {run.schema}",
    ]
    left = [f"{without} launches without samples"] * (without > 0)
    left += ["values of gates (checked by their limits)", "facts of the host"]
    lines += text.wrap(f" not recomputed: {', '.join(left)}", text.columns(), 1)
    if not verified.worded:
        lines.append(" not compared: the texts of verdicts, which another build wrote")
    if verified.num_traceless:
        lines.append(
            f" {verified.num_traceless} budgets were not recomputed, because traces are missing"
        )
    if verified.num_links:
        lines.append(f" chain of {verified.num_links} links, the last is {verified.head[:16]}")
    else:
        lines.append(" unchained: the record cannot show whether launches were left out")
    if verified.signer:
        lines.append(f" signed by {verified.signer}")
    lines += [f" DIFFERS  {difference}" for difference in verified.differences]
    if verified.differences:
        number = len(verified.differences)
        return [*lines, f" NOT VERIFIED: {number} difference{'s' * (number > 1)}"]
    if not verified.num_links:
        return [*lines, " NOT VERIFIED: there are no differences, but the run has no chain"]
    return [*lines, " everything agrees"]
