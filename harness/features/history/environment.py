"""An asv plugin that defines where benchmarks run: this Python, at a commit of the ledger.

Nothing is checked out or installed. Each commit of the ledger stands for a run that was added to
the history. ``benchmarks/records.py`` reads the values of that run, and ``benchmarks/core.py``
measures this project itself. ``asv run`` therefore accepts asv's ranges of commits, and its values
belong to the same series as those that ``scaleproof history add`` writes.
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

#: asv loads this file in the folder of its configuration, and needs a ledger there.
if Path("results").is_dir() and not Path("results", LEDGER).exists():
    ledger.write(Path("results", LEDGER), nights(Path("results")))


class Ledger(Environment):  # type: ignore[misc]  # asv has no types
    """The only environment of ``asv.conf.json``.

    Values that were added to the history and values from ``asv run`` are stored under its name.
    """

    tool_name = ENVIRONMENT

    @classmethod
    def matches(cls, python: str) -> bool:
        """Return True: the environment accepts every Python version."""
        return True

    @property
    def name(self) -> str:
        """The name of the environment."""
        return ENVIRONMENT

    @property
    def dir_name(self) -> str:
        """The name of the environment's folder."""
        return ENVIRONMENT

    def check_presence(self) -> bool:
        """Return True: nothing needs to be created."""
        return True

    def create(self) -> None:
        """Do nothing, because the current Python is the environment."""

    def checkout_project(self, repo: Any, commit_hash: str) -> None:
        """Do nothing, because a commit of the ledger has no source files."""

    def install_project(self, conf: Any, repo: Any, commit_hash: str | None = None) -> None:
        """Set the commit of the run to read; nothing is installed."""
        self._set_commit_hash(commit_hash)

    def run(self, args: list[str], **more: Any) -> Any:
        """Run a Python command with this interpreter and return its output."""
        env = {**(more.pop("env", None) or os.environ), **self._global_env_vars}
        return util.check_output([sys.executable, *args], env=env, **more)
