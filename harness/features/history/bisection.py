"""Bisection under noise: finds the first slow version and the probability of the answer."""

import math
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np

from harness.base.errors import LaunchError, SpecError
from harness.measure.interleaving import Interleaver

#: The bad version is measured before the versions in between: in at least FIRST and at most
#: MOST_PAIRS pairs, until their mean differs from zero by APART standard errors.
FIRST = 4
MOST_PAIRS = 24
APART = 4.0


@dataclass
class Bisection:
    """The pairs measured so far, and the posterior over the first bad version.

    ``error`` is the accepted probability of a wrong answer. ``pairs`` maps the number of a version
    to the logarithms of the ratios of its step time to the step time of version 0.
    """

    num_versions: int
    error: float
    pairs: dict[int, list[float]] = field(default_factory=dict)

    def add(self, version: int, ratios: Sequence[float]) -> None:
        """Add logarithms of step-time ratios of a version."""
        self.pairs.setdefault(version, []).extend(ratios)

    @property
    def posterior(self) -> np.ndarray:
        """The probability that each version is the first bad one; entry i is for version i + 1."""
        versions = np.concatenate([np.full(len(x), v) for v, x in self.pairs.items()])
        values = np.concatenate([np.asarray(pair) for pair in self.pairs.values()])
        logs = []
        for first in range(1, self.num_versions):
            after = values[versions >= first]
            rss = (values[versions < first] ** 2).sum() + ((after - after.mean()) ** 2).sum()
            logs.append(-0.5 * np.log(len(after)) - 0.5 * (len(values) - 1) * np.log(rss + 1e-18))
        weights = np.exp(np.array(logs) - max(logs))
        return np.asarray(weights / weights.sum())

    @property
    def answer(self) -> tuple[int, float]:
        """The most probable first bad version, and its probability."""
        posterior = self.posterior
        return int(posterior.argmax()) + 1, float(posterior.max())

    @property
    def apart(self) -> bool | None:
        """Whether the bad version differs from the good one, or None if that is undecided."""
        ends = self.pairs.get(self.num_versions - 1, [])
        if len(ends) < FIRST:
            return None
        if abs(np.mean(ends)) > APART * np.std(ends, ddof=1) / np.sqrt(len(ends)):
            return True
        return False if len(ends) >= MOST_PAIRS else None

    @property
    def next(self) -> int | None:
        """The version to measure next.

        It is None if the answer is certain enough, or if the good and the bad version do not
        differ.
        """
        last = self.num_versions - 1
        if self.apart is None:
            return last
        if not self.apart:
            return None
        sure = self.answer[1]
        if sure >= 1 - self.error:
            return None
        if last == 1:
            return last
        # Measuring version v separates the hypotheses "first bad <= v" from the others. The best
        # version therefore divides the posterior into two halves.
        return int(np.abs(np.cumsum(self.posterior)[:-1] - 0.5).argmin()) + 1

    def mean(self, version: int) -> tuple[float, int]:
        """Return the relative increase of a version's step time over version 0, and its number of
        pairs.
        """
        pairs = self.pairs[version]
        return float(np.expm1(np.mean(pairs))), len(pairs)

    def plain(self) -> int:
        """Return the number of launches that plain bisection would need for the same error.

        Plain bisection measures both ends, then one version at a time. It measures each version in
        so many pairs that half of the difference between good and bad would be significant.
        """
        probes = math.ceil(math.log2(self.num_versions)) + 1
        last = self.pairs[self.num_versions - 1]
        step = abs(float(np.mean(last)))
        deviation = self._sd
        z = NormalDist().inv_cdf(1 - self.error / probes)
        return 2 * probes * max(1, math.ceil((2 * z * deviation / step) ** 2))

    @property
    def _sd(self) -> float:
        """The standard deviation of a pair around the mean of its version."""
        squares = sum(((np.array(pair) - np.mean(pair)) ** 2).sum() for pair in self.pairs.values())
        free = sum(len(pair) - 1 for pair in self.pairs.values())
        return float(np.sqrt(squares / max(free, 1)))


#: Number of blocks after which a bisection stops; a block takes seconds to minutes.
MOST_PROBES = 100


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The versions from good to bad in their order, and the command that installs each of them.

    ``install`` is a shell command with {version} and {folder}, which must create
    ``{folder}/bin/python``.
    """

    names: tuple[str, ...]
    install: str
    folder: Path

    @property
    def setups(self) -> tuple[tuple[str, str], ...]:
        """The pairs (version, path of its interpreter). The interpreter need not exist yet."""
        return tuple((name, str(self._python(name).absolute())) for name in self.names)

    def _python(self, name: str) -> Path:
        """Return the path of a version's interpreter."""
        return self.folder / name / "bin" / "python"

    def ensure(self, name: str) -> None:
        """Install a version unless it is installed already.

        Raise LaunchError with the last line of the command's output if the command fails.
        """
        python = self._python(name)
        done = self.folder / name / ".installed"
        if done.is_file() and python.exists():
            return
        python.parent.parent.mkdir(parents=True, exist_ok=True)
        quoted = {k: shlex.quote(v) for k, v in (("version", name), ("folder", str(done.parent)))}
        command = self.install
        for key, value in quoted.items():
            command = command.replace(f"{{{key}}}", value)
        ended = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        if ended.returncode or not python.exists():
            output = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
            raise LaunchError(
                f"version {name} cannot be installed: {output[-1]}",
                where=command,
                expected=f"the command exits with 0 and creates {python}",
                fix=command if name in (self.names[0], self.names[-1]) else f"--skip {name}",
            )
        done.touch()


class Bisector:
    """Measures versions of one case until the first bad one is known."""

    def __init__(self, interleaver: Interleaver, versions: Versions, error: float) -> None:
        self._interleaver = interleaver
        self._versions = versions
        self.bisection = Bisection(len(versions.names), error)

    def run(self, tell: Callable[[str], None]) -> None:
        """Measure blocks until the first bad version is known. ``tell`` receives a line after each
        block.

        Raise SpecError if the good and the bad version do not differ.
        """
        names = self._versions.names
        while (
            number := self.bisection.next
        ) is not None and self._interleaver.blocks < MOST_PROBES:
            for name in (names[0], names[number]):
                self._versions.ensure(name)
            self.bisection.add(number, self._interleaver.block(names[0], names[number]))
            tell(self._line(number))
        if not self.bisection.apart:
            raise SpecError(
                f"{self._interleaver.blocks} blocks show no difference between {names[-1]} and"
                f" {names[0]}",
                expected="two versions with different step times",
                fix="scaleproof history CASE",
            )

    def _line(self, number: int) -> str:
        """Return a line with the mean of the version that was measured last.

        It also names the most probable first bad version, if there is one yet.
        """
        mean, count = self.bisection.mean(number)
        line = f"{self._versions.names[number]}: {100 * mean:+.1f}% over {count} pairs"
        if not self.bisection.apart:
            return line
        first, sure = self.bisection.answer
        if sure < 0.5:
            return line
        return f"{line}; first bad version: {self._versions.names[first]} (probability {sure:.0%})"


def between(good: str, bad: str, repository: Path) -> tuple[str, ...]:
    """Return the commits from ``good`` to ``bad``, oldest first.

    Raise SpecError if ``bad`` does not descend from ``good``.
    """
    git = ["git", "-C", str(repository)]
    words = [*git, "rev-list", "--reverse", "--first-parent", f"{good}..{bad}"]
    log = subprocess.run(
        words, capture_output=True, text=True, check=False, encoding="utf-8", errors="replace"
    )
    commits = log.stdout.split()
    if log.returncode or not commits:
        reason = log.stderr.strip() or f"{bad} does not come after {good}"
        raise SpecError(
            f"no commits between {good} and {bad}: {reason}",
            where=str(repository),
            expected="two commits of --repo, or --versions",
            fix="--versions 2.11.0,2.12.0,2.13.0",
        )
    words = [*git, "rev-parse", good]
    first = subprocess.run(
        words, capture_output=True, text=True, check=True, encoding="utf-8", errors="replace"
    )
    return (first.stdout.strip(), *commits)


def chosen(listed: Sequence[str], good: str, bad: str) -> tuple[str, ...]:
    """Return the part of a list from ``good`` to ``bad``; raise SpecError if one is not in the
    list.
    """
    for name in (good, bad):
        if name not in listed:
            raise SpecError(
                f"{name!r} is not among the versions",
                expected=", ".join(listed),
                fix="--versions GOOD,...,BAD, oldest first",
            )
    a, b = listed.index(good), listed.index(bad)
    if a >= b:
        raise SpecError(
            f"{bad} does not come after {good}",
            expected="--versions lists the oldest version first",
            fix=f"--good {bad} --bad {good}",
        )
    return tuple(listed[a : b + 1])
