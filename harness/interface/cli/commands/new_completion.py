"""The command ``new completion``: the script that a shell sources for completion at TAB."""

import argparse
from collections.abc import Mapping
from typing import Any, TypedDict

from harness.interface.cli.answer import Answer, Asked

HELP = {
    "new completion": "print the completion script of a shell",
}
EXAMPLES = {
    "new completion": (
        "new completion bash",
        "new completion fish",
    ),
}
SHELLS = ("bash", "zsh", "fish")


class Completion(TypedDict):
    shell: str
    script: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "new completion": (Completion,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("shell", choices=SHELLS)


def act(asked: Asked) -> Answer:
    from argcomplete.shell_integration import shellcode

    shell = asked.options.shell
    # argcomplete uses one script for bash and zsh.
    script = shellcode(["scaleproof"], shell="bash" if shell == "zsh" else shell)
    return Answer(document={"shell": shell, "script": script}, lines=script.splitlines())
