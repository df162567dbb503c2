"""``completion``: what a shell sources to complete words of this program at TAB."""

import argparse
from collections.abc import Mapping
from typing import Any, TypedDict

from harness.interface.cli.answer import Answer, Asked

HELP = dict(completion="print what a shell needs to complete words: eval or save its output")
EXAMPLES = dict(
    completion=(
        "completion bash",
        "completion fish",
    ),
)
SHELLS = ("bash", "zsh", "fish")


class Completion(TypedDict):
    shell: str
    script: str


#: What each verb prints with ``--json``: a document, or one for each way of asking.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "completion": (Completion,),
}


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument("shell", choices=SHELLS)


def act(asked: Asked) -> Answer:
    from argcomplete.shell_integration import shellcode

    shell = asked.options.shell
    # The script for bash is zsh's, too.
    script = shellcode(["scaleproof"], shell="bash" if shell == "zsh" else shell)
    return Answer(document={"shell": shell, "script": script}, lines=script.splitlines())
