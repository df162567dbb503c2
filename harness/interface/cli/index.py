"""The first words to type, and all verbs by task: the start screen, ``--help`` and ``--help all``.

A task's name before a verb is read as the verb alone: ``scaleproof nodes pairs`` is ``scaleproof
pairs``. A verb that no task has stands under its folder's name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.interface.report.text import wrap

SAYS = "Prove or disprove that distributed training scales on this hardware; say why."
#: What one wants, and what to type for it.
WANTED = (
    ("try it here, a minute", "scaleproof demo"),
    ("is this machine fit to measure?", "scaleproof doctor"),
    ("my training is slow on N ranks", "scaleproof run --script --cpus 2 -- train.py"),
    ("one case over 1, 2 .. N ranks", "scaleproof run ddp/decoder-nano/weak --cpus 2"),
    ("how long would 8 GPUs take?", "scaleproof plan suites --on 8xh100"),
    ("accept a machine by my rules", "scaleproof init mine && pytest mine"),
    ("watch it every night", "scaleproof nightly"),
    ("compare two machines", "scaleproof compare-hardware RUN_A RUN_B"),
    ("what came of a run, is it true?", "scaleproof report RUN; scaleproof verify RUN"),
    ("anything else", "scaleproof --help"),
)
FIRST = ("doctor", "plan", "run", "report", "compare", "history", "verify", "init")
#: Task -> what it is about, and its verbs.
TASKS: Mapping[str, tuple[str, Sequence[str]]] = {
    "nodes": (
        "which node, link or collective is slow or wrong",
        ("gate", "fabric", "pairs", "isolate"),
    ),
    "jobs": ("runs in a scheduler's queue", ("status", "cancel", "collect", "attach", "join")),
    "tune": ("what would make a training faster", ("advise", "fit", "compress", "timeline")),
    "nights": ("how figures change over time", ("nightly", "ingest", "bisect", "baseline")),
    "foresee": ("sizes and machines that are not here", ("predict", "possible")),
    "faults": ("what interruptions cost", ("recover", "goodput")),
    "archive": ("runs as evidence for others", ("contract", "handover", "sign", "pack", "unpack")),
    "data": ("figures for other programs", ("export", "audit", "compare-hardware")),
    "share": ("runs where others look", ("pr", "site", "publish")),
    "suites": ("what can be asked", ("demo", "list", "rules", "completion")),
}


def start(width: int) -> list[str]:
    """The screen of ``scaleproof`` alone: what to type, by what one wants."""
    longest = max(len(want) for want, _ in WANTED)
    return [*_says(width), *(f" {want:<{longest}}  {words}" for want, words in WANTED)]


def verb_of(words: Sequence[str], known: Mapping[str, Path]) -> Sequence[str]:
    """The words without a task's name before its verb."""
    of_task = len(words) > 1 and words[0] in TASKS and words[0] not in known
    return words[1:] if of_task and not words[1].startswith("-") else words


def overview(helps: Mapping[str, str], folders: Mapping[str, str], width: int) -> list[str]:
    """The screen of ``--help``: eight verbs with their sentence, the others by task."""
    lines = [*_says(width), " usage: scaleproof VERB ... (scaleproof VERB --help: its options)", ""]
    lines += [line for verb in FIRST if verb in helps for line in _sentence(verb, helps, width)]
    lines += ["", " more verbs, by task (scaleproof --help all has a sentence for each):"]
    for task, about, verbs in _tasks(helps, folders):
        lines += wrap(f"  {task:<9} {', '.join(verbs)}: {about}", width, 12)
    return lines


def whole(helps: Mapping[str, str], folders: Mapping[str, str], width: int) -> list[str]:
    """The screen of ``--help all``: every verb with its sentence, by task."""
    first = [line for verb in FIRST if verb in helps for line in _sentence(verb, helps, width)]
    lines = [*_says(width), *first, *([""] if first else [])]
    for task, about, verbs in _tasks(helps, folders):
        lines.append(f" {task}: {about}")
        lines += [line for verb in verbs for line in _sentence(verb, helps, width)]
        lines.append("")
    return lines[:-1]


def _says(width: int) -> list[str]:
    return [*wrap(f" {SAYS}", width, 1), ""]


def _tasks(
    helps: Mapping[str, str], folders: Mapping[str, str]
) -> list[tuple[str, str, list[str]]]:
    """(task, what it is about, its verbs that there are); what no task has, by its folder."""
    grouped = [
        (task, about, [v for v in verbs if v in helps]) for task, (about, verbs) in TASKS.items()
    ]
    placed = {*FIRST, *(verb for _, _, verbs in grouped for verb in verbs)}
    ungrouped: dict[str, list[str]] = {}
    for verb in helps:
        if verb not in placed:
            ungrouped.setdefault(folders[verb], []).append(verb)
    grouped += [(folder, "more", verbs) for folder, verbs in ungrouped.items()]
    return [task for task in grouped if task[2]]


def _sentence(verb: str, helps: Mapping[str, str], width: int) -> list[str]:
    return wrap(f"  {verb:<17} {helps[verb]}", width, 20)
