"""Follow one launch over the agents of a fleet, from starting its ranks to the last rank's end."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

from harness.base.documents import from_doc, to_doc
from harness.launch.agents import AgentLink, Message
from harness.launch.wire.messages import Address, LaunchSpec, RankEnd, Share

#: Seconds of silence after which an agent counts as lost. Silence counts only while the main
#: program listens.
LOST_S = 10.0
#: Seconds between the first failure and the end of the world. In this time, the ranks of other
#: nodes may write down their evidence.
GRACE_S = 1.0
#: Seconds that agents have to end their ranks before they count as lost.
END_S = 10.0


class Running:
    """The state of a launch that is in progress.

    The fleet passes every message to ``hear``, and calls ``watch`` a few times a second.
    """

    def __init__(
        self, spec: LaunchSpec, shares: Sequence[tuple[AgentLink, Share]], lost_s: float = LOST_S
    ) -> None:
        self.spec = spec
        self.links = [link for link, _ in shares]
        self._lost_s = lost_s
        # Encoded once for all agents, because the text is long if there are many nodes.
        self._spec_text = json.dumps(to_doc(spec)).encode()
        self.failing = False
        self._began = time.monotonic()
        self._failed_at = self.noticed_at = self.lasted_s = 0.0
        self._told = False
        self._started: set[int] = set()
        self._beats: dict[int, Sequence[Sequence[float]]] = {}
        self._ended: dict[int, list[RankEnd]] = {}
        self._shares = {link.node: share for link, share in shares}
        for link in self.links:
            link.hear()
        self._send_share(self.links[0])

    def _send_share(self, link: AgentLink, store: Address | None = None) -> None:
        """Ask an agent to start its ranks; ``store`` is the address of the rendezvous store."""
        self._started.add(link.node)
        share = dataclasses.replace(self._shares[link.node], store=store)
        link.send({"launch": self.spec.launch, "share": to_doc(share)}, self._spec_text)

    @property
    def over(self) -> bool:
        """Whether the ranks of every agent have ended."""
        return all(link.node in self._ended for link in self.links)

    @property
    def step(self) -> int:
        """The step of the slowest rank; 0 until every agent has reported."""
        if len(self._beats) < len(self.links):
            return 0
        return int(min(beat[1] for beats in self._beats.values() for beat in beats))

    def hear(self, link: AgentLink, message: Message, blob: bytes) -> None:
        """Process one message of an agent; messages about other launches are ignored."""
        if link.node not in self._shares or message.get("of") != self.spec.launch:
            return
        if "store" in message and not self._told:
            for other in self.links[1:]:
                self._send_share(other, from_doc(Address, message["store"]))
        elif "beats" in message:
            self._beats[link.node] = message["beats"]
        elif "failing" in message:
            self.fail()
        elif "file" in message:
            name = Path(message["file"]).name
            Path(self.spec.out).mkdir(parents=True, exist_ok=True)
            with (Path(self.spec.out) / name).open("wb" if message["begins"] else "ab") as file:
                file.write(blob)
        elif "ended" in message:
            share = self._shares[link.node]
            ends = [from_doc(RankEnd, r) for r in message["ended"]]
            if [end.rank for end in ends] == list(range(share.first, share.first + share.count)):
                self._close(link, ends)
            else:
                link.lose(f"its agent reported {len(ends)} ranks, expected {share.count}")

    def _close(self, link: AgentLink, ends: list[RankEnd]) -> None:
        """Record how the ranks of an agent ended. The agent is done with this launch."""
        self._ended[link.node] = ends
        self.lasted_s = time.monotonic() - self._began

    def fail(self) -> None:
        """Record the time of the first failure in this world."""
        if not self.failing:
            self.failing = True
            self._failed_at = time.monotonic()
            self.noticed_at = time.time()

    def watch(self) -> None:
        """Give up lost nodes, and end the world ``GRACE_S`` after the first failure."""
        now = time.monotonic()
        for link in self.links:
            if link.node in self._ended:
                continue
            if not link.lost and link.silent_s > self._lost_s:
                link.lose(f"its agent was silent for {self._lost_s:.0f} s")
            if link.lost:
                self._close(link, self._unseen(link))
                self.fail()
            elif self._told and link.node not in self._started:
                self._close(link, self._unseen(link))  # the agent never had to start its ranks
        if self.failing and not self._told and now - self._failed_at > GRACE_S:
            self.end()
        if self._told and now - self._failed_at > GRACE_S + END_S:
            for link in self.links:
                if link.node not in self._ended:
                    link.lose("its agent did not end its ranks")

    def end(self) -> None:
        """Ask every agent to end its ranks."""
        self.fail()
        self._told = True
        for link in self.links:
            if link.node in self._started and link.node not in self._ended:
                link.send({"kill": self.spec.launch})

    def _unseen(self, link: AgentLink) -> list[RankEnd]:
        """Return a ``RankEnd`` for each rank of an agent that will not report them itself."""
        share = self._shares[link.node]
        beats = self._beats.get(link.node, [])
        lost = []
        for i in range(share.count):
            step = int(beats[i][1]) if i < len(beats) else 0
            lost.append(
                RankEnd(
                    rank=share.first + i,
                    pid=0,
                    exit_code=None,
                    signal=None,
                    killed=not link.lost,
                    finished=False,
                    phase="",
                    step=step,
                    silent_s=time.monotonic() - link.heard_at,
                    order=0,
                    node=share.node,
                    ended_s=time.monotonic() - self._began,
                    lost=f"{link.name}: {link.lost}" if link.lost else "",
                )
            )
        return lost

    def ends(self) -> tuple[RankEnd, ...]:
        """Return how every rank ended, sorted by rank, with ``order`` counted over all nodes."""
        rank_ends = [end for node in self._ended.values() for end in node]
        by_time = {e.rank: i for i, e in enumerate(sorted(rank_ends, key=lambda e: e.ended_s))}
        ordered = (dataclasses.replace(e, order=by_time[e.rank]) for e in rank_ends)
        return tuple(sorted(ordered, key=lambda e: e.rank))
