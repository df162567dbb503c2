"""The index of commands: the start screen, ``--help`` and ``--help-all``, and the old names.

A command is one word, or two: ``report`` and ``report timeline`` are two commands of one group. The
files of ``commands/``, here and in features, state in their heads which commands they have.
"""

from collections.abc import Mapping, Sequence

from harness.interface.report.text import wrap

SAYS = "Benchmark and validate the scaling of distributed PyTorch training."
#: Common first tasks, and the command for each.
WANTED = (
    ("try it in a minute", "scaleproof run demo"),
    ("check this machine", "scaleproof check"),
    ("see why my training is slow", "scaleproof run --script --cpus 2 -- train.py"),
    ("benchmark one case", "scaleproof run ddp/decoder-nano/weak --cpus 2"),
    ("estimate a run on 8 GPUs", "scaleproof run plan suites --on 8xh100"),
    ("accept a machine", "scaleproof new mine && pytest mine"),
    ("measure every night", "scaleproof history nightly"),
    ("compare two machines", "scaleproof compare machines RUN_A RUN_B"),
    ("see and check a result", "scaleproof report RUN; scaleproof verify RUN"),
    ("see all commands", "scaleproof --help"),
)
#: For each title of ``--help``, its groups of commands and their sentences.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Measure": {
        "check": "Check this machine, nodes or a thresholds file",
        "run": "Benchmark a script, a case or a suite",
        "network": "Benchmark collectives, find slow nodes and links",
        "faults": "Measure recovery and goodput under faults",
    },
    "Read": {
        "report": "Show, explain and export results",
        "compare": "Compare runs, machines, branches or versions",
        "predict": "Estimate larger systems from small ones",
        "history": "Track results over time, measure every night",
    },
    "Share": {
        "verify": "Recompute results from raw samples, check a table",
        "accept": "Contracts, acceptance reports, signed archives",
    },
    "Manage": {
        "jobs": "Show, cancel and collect queued runs",
        "new": "Write a suite to start from",
    },
}
#: Names of commands until version 0.1, which are accepted for one release.
OLD_NAMES: Mapping[str, str] = {
    "doctor": "check",
    "gate": "check nodes",
    "rules": "check thresholds",
    "plan": "run plan",
    "demo": "run demo",
    "fit": "run fit",
    "compress": "run compress",
    "list": "run list",
    "fabric": "network",
    "pairs": "network pairs",
    "isolate": "network isolate",
    "recover": "faults recover",
    "goodput": "faults goodput",
    "timeline": "report timeline",
    "advise": "report advice",
    "export": "report export",
    "publish": "report publish",
    "site": "report site",
    "compare-hardware": "compare machines",
    "pr": "compare pr",
    "bisect": "compare bisect",
    "possible": "predict thresholds",
    "nightly": "history nightly",
    "ingest": "history add",
    "baseline": "history baseline",
    "audit": "verify table",
    "contract": "accept contract",
    "handover": "accept report",
    "sign": "accept sign",
    "pack": "accept pack",
    "unpack": "accept unpack",
    "status": "jobs",
    "cancel": "jobs cancel",
    "collect": "jobs collect",
    "attach": "jobs attach",
    "join": "jobs join",
    "init": "new",
    "completion": "new completion",
}


def start(width: int) -> list[str]:
    """Return the screen of ``scaleproof`` alone: common tasks and their commands."""
    longest = max(len(task) for task, _ in WANTED)
    return [*_says(width), *(f" {task:<{longest}}  {words}" for task, words in WANTED)]


def overview(known: Sequence[str], width: int) -> list[str]:
    """Return the screen of ``--help``: every group with its sentence and its subcommands.

    ``known`` are the names of all commands. A group without any command is left out.
    """
    lines = [*_says(width), " usage: scaleproof COMMAND [SUBCOMMAND] [OPTIONS]"]
    titled = {title: dict(groups) for title, groups in GROUPS.items()}
    placed = {group for groups in GROUPS.values() for group in groups}
    if more := [command for command in known if command.partition(" ")[0] not in placed]:
        titled["More"] = {command.partition(" ")[0]: "" for command in more}
    for title, groups in titled.items():
        there = [group for group in groups if group in known or subcommands(group, known)]
        lines += [f" {title}"] if there else []
        for group in there:
            names = ", ".join(subcommands(group, known))
            also = f" [{names}]" if names else ""
            lines += wrap(f"  {group:<8} {groups[group]}{also}", width, 11)
    return [
        *lines,
        "",
        *wrap(" --help of a command shows its main options and --help-all all of them.", width, 1),
    ]


def whole(helps: Mapping[str, str], width: int) -> list[str]:
    """Return the screen of ``--help-all``: every command with its sentence.

    ``helps`` maps each command to its sentence.
    """
    order = [group for groups in GROUPS.values() for group in groups]
    ranked = sorted(helps, key=lambda name: (*_place(name, order), name))
    return [*_says(width), *(line for name in ranked for line in _sentence(name, helps, width))]


def of_group(group: str, helps: Mapping[str, str], width: int) -> list[str]:
    """Return a line for each subcommand of a group with its sentence; empty if it has none."""
    names = [f"{group} {name}" for name in subcommands(group, list(helps))]
    return [line for name in names for line in _sentence(name, helps, width)]


def subcommands(group: str, known: Sequence[str]) -> list[str]:
    """Return the second words of the commands of a group, in alphabetical order."""
    return sorted(name.partition(" ")[2] for name in known if name.startswith(f"{group} "))


def _place(name: str, order: Sequence[str]) -> tuple[int]:
    group = name.partition(" ")[0]
    return (order.index(group) if group in order else len(order),)


def _says(width: int) -> list[str]:
    return [*wrap(f" {SAYS}", width, 1), ""]


def _sentence(name: str, helps: Mapping[str, str], width: int) -> list[str]:
    return wrap(f"  {name:<18} {helps[name]}", width, 21)
