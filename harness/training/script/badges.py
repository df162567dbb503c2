"""Read and write badges: files that tell a process which rank it is and how to be watched."""

import json
from dataclasses import dataclass
from pathlib import Path

from harness.base.documents import from_doc, to_doc
from harness.cases.script import ScriptCommand
from harness.launch.wire.messages import LaunchSpec
from harness.record.store import write_text


@dataclass(frozen=True, kw_only=True)
class RankIdentity:
    """The content of a badge file: all that a new interpreter needs to act as a rank.

    ``beats`` is the file of heartbeats. All ranks meet at ``host`` and ``port``. ``way`` says how
    the process was started: "fresh" or "launcher".
    """

    spec: LaunchSpec
    command: ScriptCommand
    rank: int
    local_rank: int
    node: int
    device: int
    cpus: tuple[int, ...]
    beats: str
    host: str
    port: int
    way: str


def path_of(out: Path, rank: int) -> Path:
    return out / f"badge{rank}.json"


def write(badge: RankIdentity) -> None:
    write_text(path_of(Path(badge.spec.out), badge.rank), json.dumps(to_doc(badge)))


def read(path: Path) -> RankIdentity:
    return from_doc(RankIdentity, json.loads(path.read_text(encoding="utf-8")))
