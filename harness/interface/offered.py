"""The options that both programs offer: a table that imports nothing, so pytest starts at once."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.base.errors import SpecError, nearest


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its short name, and how argparse takes it. ``--scaling-NAME`` always exists.

    ``cases``: only what measures cases has a use for it; sweeps and trials have none.
    """

    name: str
    help: str
    kwargs: Mapping[str, Any]
    cases: bool = False


OPTIONS = (
    Option(name="gpus", help="GPU ranks: a number or 'auto'", kwargs={"metavar": "N"}),
    Option(name="cpus", help="CPU ranks over gloo", kwargs={"metavar": "N", "type": int}),
    Option(
        name="nodes",
        help="number of nodes, or the ranks on each node: 4+8+16, 2x8",
        kwargs={"metavar": "N", "default": "1"},
    ),
    Option(
        name="engine",
        help="engine that starts the ranks, see `scaleproof list engines`",
        kwargs={"metavar": "NAME", "default": "local"},
    ),
    Option(
        name="cluster",
        help="cluster file, with a table of settings for each engine",
        kwargs={"metavar": "FILE"},
    ),
    Option(
        name="shared-gpu",
        help="let ranks share a GPU over gloo (labelled stand-in)",
        kwargs={"action": "store_true"},
    ),
    Option(
        name="results", help="where runs are written (default: results)", kwargs={"metavar": "DIR"}
    ),
    Option(
        name="thresholds",
        help="thresholds file (default: thresholds.toml beside the suite)",
        kwargs={"metavar": "FILE"},
    ),
    Option(
        name="references",
        help="expected values of this hardware: a file, or a folder of them",
        kwargs={"metavar": "PATH"},
    ),
    Option(
        name="path",
        help="folder with your own strategies, models, compressors or engines",
        kwargs={"metavar": "DIR", "action": "append", "default": []},
    ),
    Option(
        name="data",
        help="file or folder that a script only reads: all launches share it, everything else is copied for each",
        kwargs={"metavar": "PATH", "action": "append", "default": []},
    ),
    Option(
        name="heartbeat",
        help="file that says where the run is, rewritten every 5 s, for a watchdog or Prometheus; or an OpenTelemetry collector: http://HOST:4318",
        kwargs={"metavar": "WHERE"},
    ),
    Option(
        name="time-budget",
        cases=True,
        help="fit all blocks into this time: 330, 5m, 1h (default: two blocks for each plan, more for undecided ones, for 8 minutes at most)",
        kwargs={"metavar": "TIME"},
    ),
    Option(
        name="no-timeline",
        cases=True,
        help="skip the profiled launches, which show where the time went",
        kwargs={"action": "store_true", "default": False},
    ),
    Option(
        name="operators",
        cases=True,
        help="profile every operator of CPU ranks too (slower by a tenth where steps are short)",
        kwargs={"action": "store_true", "default": False},
    ),
    Option(
        name="no-fabric",
        cases=True,
        help="do not measure the collectives first",
        kwargs={"action": "store_true", "default": False},
    ),
    Option(
        name="one-by-one",
        cases=True,
        help="launch one world at a time (default: small ones side by side, on nodes or GPUs of their own)",
        kwargs={"action": "store_true", "default": False},
    ),
    Option(
        name="control",
        cases=True,
        help="interpreter of an environment that stays as it is: the largest rung of every ladder is measured with it, too, in the same blocks",
        kwargs={"metavar": "PYTHON"},
    ),
    Option(
        name="nonce",
        help="a text of whoever asked for this run, sealed before its first launch",
        kwargs={"metavar": "TEXT"},
    ),
    Option(
        name="every-rung",
        cases=True,
        help="judge every world of a ladder on GPUs, not the largest one alone",
        kwargs={"action": "store_true", "default": False},
    ),
    Option(
        name="worst-pair",
        cases=True,
        help="judge the worst pair of launches instead of the mean",
        kwargs={"action": "store_true", "default": False},
    ),
)


#: Variables of this program that are no options: a container's image, a key's passphrase, and what
#: programs of this package tell each other.
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


#: What Kubernetes sets in every pod for a service of that name.
_OF_A_SERVICE = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_(TCP|UDP)\w*)?$")


def refuse_unknown_variables() -> None:
    """SpecError for a ``SCALEPROOF_*`` variable that nothing reads: it was meant to do something."""
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
    """The variable that an option is taken from where it is not given."""
    return f"SCALEPROOF_{option.name.replace('-', '_').upper()}"


def from_environment(option: Option) -> Any:
    """An option's value by ``SCALEPROOF_NAME``, else its default; SpecError for what is none."""
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
        raise SpecError(f"{name}={value}: not a number", fix=f"unset {name}") from None


def again(words: Sequence[str]) -> str:
    """A command as it can be typed again, with the variables that stand for options of it."""
    set_here = [
        f"{name}={shlex.quote(os.environ[name])}"
        for name in map(variable, OPTIONS)
        if name in os.environ
    ]
    return " ".join([*set_here, shlex.join(words)])
