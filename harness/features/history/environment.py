"""asv's view of where benchmarks run: this Python, at a commit of the ledger. An asv plugin.

Nothing is checked out or installed: a commit of the ledger is a run that was ingested, and
``benchmarks/records.py`` reads it; ``benchmarks/core.py`` measures this project itself. So
``asv run`` takes asv's ranges, stores what it measures, and its values stand in the series that
``scaleproof history add`` writes.
"""

import os
import sys
from pathlib import Path
from typing import Any

from asv import util
from asv.environment import Environment

from harness.features.history import ledger
from harness.features.history.asv_results import ENVIRONMENT, LEDGER
from harness.features.history.night import nights

#: asv stands where its configuration is when it loads this file, and wants a ledger to be there.
if Path("results").is_dir() and not Path("results", LEDGER).exists():
    ledger.write(Path("results", LEDGER), nights(Path("results")))


class Ledger(Environment):  # type: ignore[misc]  # asv has no types
    """The only environment of ``asv.conf.json``: one name for ingested and for run series."""

    tool_name = ENVIRONMENT

    @classmethod
    def matches(cls, python: str) -> bool:
        return True

    @property
    def name(self) -> str:
        return ENVIRONMENT

    @property
    def dir_name(self) -> str:
        return ENVIRONMENT

    def check_presence(self) -> bool:
        return True

    def create(self) -> None:
        """There is nothing to create."""

    def checkout_project(self, repo: Any, commit_hash: str) -> None:
        """A commit of the ledger has no files to check out."""

    def install_project(self, conf: Any, repo: Any, commit_hash: str | None = None) -> None:
        """Only note which run is to be read."""
        self._set_commit_hash(commit_hash)

    def run(self, args: list[str], **more: Any) -> Any:
        env = {**(more.pop("env", None) or os.environ), **self._global_env_vars}
        return util.check_output([sys.executable, *args], env=env, **more)
