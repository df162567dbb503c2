"""The options that ``scaleproof`` and the pytest plugin share.

This module imports little, so that pytest starts fast.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.base.errors import SpecError, nearest

#: A property of a command that some options need: it measures cases, runs scripts, writes records.
Need = Literal["cases", "scripts", "records"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its short name, and its arguments for argparse. ``--scaling-NAME`` always exists.

    Options with ``cases`` exist only in commands that measure cases, not in commands for sweeps and
    fault scenarios. ``advanced`` options are shown only by ``--help-all``.
    """

    name: str
    help: str
    kwargs: Mapping[str, Any]
    needs: Need | None = None
    advanced: bool = False


OPTIONS = (
    Option(name="gpus", help="number of GPU ranks, or 'auto'", kwargs={"metavar": "N"}),
    Option(
        name="cpus", help="number of CPU ranks, over gloo", kwargs={"metavar": "N", "type": int}
    ),
    Option(
        name="nodes",
        help="number of nodes, or the ranks of each node: 4+8+16, 2x8",
        kwargs={"metavar": "N", "default": "1"},
    ),
    Option(
        name="engine",
        help="engine that starts the ranks, see `scaleproof run list engines`",
        kwargs={"metavar": "NAME", "default": "local"},
    ),
    Option(
        name="thresholds",
        help="thresholds file (default: thresholds.toml in the folder of the suite)",
        kwargs={"metavar": "FILE"},
    ),
    Option(
        name="time-budget",
        needs="cases",
        help="time limit of all blocks: 330, 5m, 1h (default: two blocks for each plan, then up to 8 minutes for inconclusive ones)",
        kwargs={"metavar": "TIME"},
    ),
    Option(
        name="results",
        help="folder that runs are written to (default: results)",
        kwargs={"metavar": "DIR"},
        advanced=True,
    ),
    Option(
        name="cluster",
        help="cluster file, with a table of settings for each engine",
        kwargs={"metavar": "FILE"},
        advanced=True,
    ),
    Option(
        name="path",
        help="folder with the user's strategies, models, compressors or engines",
        kwargs={"metavar": "DIR", "action": "append", "default": []},
        advanced=True,
    ),
    Option(
        name="data",
        needs="scripts",
        help="file or folder that a script only reads; launches share it and copy everything else",
        kwargs={"metavar": "PATH", "action": "append", "default": []},
        advanced=True,
    ),
    Option(
        name="writes",
        needs="scripts",
        help="existing file or folder outside a script's folder that its launches may change",
        kwargs={"metavar": "PATH", "action": "append", "default": []},
        advanced=True,
    ),
    Option(
        name="references",
        help="expected values of this hardware: a file, or a folder of files",
        kwargs={"metavar": "PATH"},
        advanced=True,
    ),
    Option(
        name="shared-gpu",
        help="let ranks share a GPU over gloo (the result is labelled simulated)",
        kwargs={"action": "store_true"},
        advanced=True,
    ),
    Option(
        name="heartbeat",
        needs="records",
        help="file with the progress of the run, rewritten every 5 s for a watchdog or Prometheus; or an OpenTelemetry collector: http://HOST:4318",
        kwargs={"metavar": "WHERE"},
        advanced=True,
    ),
    Option(
        name="no-timeline",
        needs="cases",
        help="skip the profiled launches, which show where the time went",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
    Option(
        name="operators",
        needs="cases",
        help="profile every operator of CPU ranks as well (up to 10 %% slower if steps are short)",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
    Option(
        name="no-fabric",
        needs="cases",
        help="skip the measurement of the collectives",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
    Option(
        name="one-by-one",
        needs="cases",
        help="launch one world at a time (default: small worlds run concurrently on separate nodes or GPUs)",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
    Option(
        name="control",
        needs="cases",
        help="Python of a pinned environment, in which the largest world size of each scaling sweep is measured as well, in the same blocks",
        kwargs={"metavar": "PYTHON"},
        advanced=True,
    ),
    Option(
        name="nonce",
        needs="records",
        help="challenge string of the person who asked for this run, recorded before its first launch",
        kwargs={"metavar": "TEXT"},
        advanced=True,
    ),
    Option(
        name="every-rung",
        needs="cases",
        help="judge every world size of a scaling sweep on GPUs, instead of the largest one",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
    Option(
        name="worst-pair",
        needs="cases",
        help="judge the worst pair of launches instead of the mean",
        kwargs={"action": "store_true", "default": False},
        advanced=True,
    ),
)


#: Environment variables of this program that are no options: a container's image, the passphrase of
#: a key, and variables by which processes of this package pass values to each other.
VARIABLES = {
    f"SCALEPROOF_{name}"
    for name in (
        "BADGES",
        "FAMILY",
        "FIRST",
        "HOME",
        "IMAGE",
        "PASSPHRASE",
        "SUBMITTED",
        "TOKEN",
        "WRITABLE",
    )
}


#: Names of variables that Kubernetes sets in every pod for a service named ``scaleproof``.
_OF_A_SERVICE = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_(TCP|UDP)\w*)?$")


def refuse_unknown_variables() -> None:
    """Raise SpecError for a ``SCALEPROOF_*`` variable that nothing reads, for example a typo."""
    options = sorted(variable(option) for option in OPTIONS)
    for name in sorted(os.environ):
        if _OF_A_SERVICE.search(name):
            continue
        if name.startswith("SCALEPROOF_") and name not in {*VARIABLES, *options}:
            raise SpecError(
                f"{name}: nothing reads this variable{nearest(name, options)}",
                expected=", ".join(options),
                fix=f"unset {name}",
            )


def variable(option: Option) -> str:
    """Return the environment variable that is the default of an option."""
    return f"SCALEPROOF_{option.name.replace('-', '_').upper()}"


def from_environment(option: Option) -> Any:
    """Return an option's value from ``SCALEPROOF_NAME``, or its default.

    Raise SpecError for an invalid number.
    """
    name = variable(option)
    kwargs = option.kwargs
    value = os.environ.get(name)
    if value is None:
        return kwargs.get("default")
    if kwargs.get("action") == "append":
        return [value]
    if kwargs.get("action") == "store_true":
        return value.lower() not in ("", "0", "no", "false")
    try:
        return kwargs.get("type", str)(value)
    except ValueError:
        raise SpecError(f"{name}={value} is not a number", fix=f"unset {name}") from None


def again(words: Sequence[str]) -> str:
    """Return a command to type again, preceded by the environment variables that set options."""
    set_here = [
        f"{name}={shlex.quote(os.environ[name])}"
        for name in map(variable, OPTIONS)
        if name in os.environ
    ]
    return " ".join([*set_here, shlex.join(words)])
