"""The command ``compare bisect``: find the software version that made a case slower."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.base.documents import Json
from harness.base.errors import Exit, SpecError
from harness.features.history import bisection as bisecting
from harness.features.history.bisection import Bisector, Versions
from harness.interface.cli import environments, measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.measure.session import Session

HELP = {
    "compare bisect": "find the software version that made a case slower",
}
EXAMPLES = {
    "compare bisect": (
        "compare bisect CASE --good 1 --bad 3 --versions 1,2,3"
        ' --install "./install {version} {folder}"',
        "compare bisect CASE --good v1.4 --bad main --repo ~/model"
        ' --install "./build {version} {folder}"',
    ),
}


class Probe(TypedDict):
    version: str
    pairs: int
    longer: float


class Bisected(TypedDict):
    first_bad: str
    last_good: str
    sure: float
    longer: float
    launches: int
    plain: int
    probes: Sequence[Probe]
    run: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "compare bisect": (Bisected,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the case, the good and the bad version, and the command that installs a version."""
    sub.add_argument("target", metavar="CASE", help="a case, measured at its largest world size")
    sub.add_argument("--good", required=True, metavar="VERSION")
    sub.add_argument("--bad", required=True, metavar="VERSION")
    sub.add_argument(
        "--install",
        required=True,
        metavar="COMMAND",
        help="a shell command with {version} and {folder} that creates {folder}/bin/python",
    )
    sub.add_argument(
        "--versions",
        metavar="LIST",
        help="versions from good to bad, separated by commas (default: commits)",
    )
    sub.add_argument(
        "--repo",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the repository of the commits",
    )
    sub.add_argument("--skip", action="append", default=[], metavar="VERSION")
    sub.add_argument(
        "--error",
        type=measuring.share(0.5),
        default=0.05,
        metavar="SHARE",
        help="probability that the answer is wrong (default: 0.05)",
    )
    measuring.add_measuring_options(sub, "cases", "scripts", "records")


def act(asked: Asked) -> Answer:
    """Measure versions in one run until the first bad one is known."""
    args = asked.options
    results = measuring.results(asked)
    names = _versions(args)
    versions = Versions(names=names, install=args.install, folder=results / "bisect")
    session, ((_, interleaver),) = environments.interleavers(asked, [args.target], versions.setups)
    bisector = Bisector(interleaver, versions, args.error)
    with session:
        bisector.run(session.progress.note)
    session.save(complete=True)
    return _answer(bisector, names, session)


def _versions(args: argparse.Namespace) -> tuple[str, ...]:
    if args.versions:
        listed = [v.strip() for v in args.versions.split(",") if v.strip()]
        names = bisecting.chosen(listed, args.good, args.bad)
    else:
        names = bisecting.between(args.good, args.bad, args.repo)
    if names[0] in args.skip or names[-1] in args.skip:
        raise SpecError(
            "--skip names the good or the bad version",
            expected="versions between the good and the bad one",
            fix="--good V",
        )
    return tuple(name for name in names if name not in args.skip)


def _answer(bisector: Bisector, names: Sequence[str], session: Session) -> Answer:
    bisection = bisector.bisection
    run = session.run
    first, sure = bisection.answer
    size, _ = bisection.mean(first) if first in bisection.pairs else bisection.mean(len(names) - 1)
    timed = 2 * sum(map(len, bisection.pairs.values()))
    kind = "slower" if size > 0 else "faster"
    lines = [
        f" first bad  {names[first]}  ({sure:.1%} sure), steps {100 * size:+.1f}%",
        f" last good  {names[first - 1]}",
        "",
        f" {'version':<24}{'pairs':>6}  {kind} than {names[0]}",
    ]
    rows = []
    for number in sorted(bisection.pairs):
        mean, count = bisection.mean(number)
        mark = "  <- first bad" if number == first else ""
        lines.append(f" {names[number]:<24}{count:>6}  {100 * mean:+.1f}%{mark}")
        rows.append({"version": names[number], "pairs": count, "longer": mean})
    plain = bisection.plain()
    lines += [
        "",
        f" {timed} timed launches of {len(bisection.pairs) + 1} of {len(names)} versions; plain"
        f" bisection would need about {plain} for the same error probability",
        f" report     scaleproof report {text.shown(run.folder)}",
    ]
    document: Json = {
        "first_bad": names[first],
        "last_good": names[first - 1],
        "sure": sure,
        "longer": size,
        "launches": timed,
        "plain": plain,
        "probes": rows,
        "run": str(run.folder),
    }
    done = sure >= 1 - bisection.error
    return Answer(document=document, lines=lines, exit=Exit.PASSED if done else Exit.INCONCLUSIVE)
