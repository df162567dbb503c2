"""One agent of a fleet, as the program that launches sees it."""

import time
from dataclasses import dataclass, field

from harness.base.documents import Json
from harness.launch.wire.channel import Channel, ChannelError
from harness.launch.wire.messages import Node

Message = dict[str, Json]


@dataclass
class AgentLink:
    """One agent and what it has said."""

    node: int
    channel: Channel | None
    about: Node | None = None
    heard_at: float = field(default_factory=time.monotonic)
    silent_s: float = 0.0  # while somebody listened
    lost: str = ""
    left_out: bool = False  # no other agent came in its place
    compiles: bool = False  # it has imported what ranks compile with
    last_words: str = ""  # why it ends, where it could say so

    @property
    def name(self) -> str:
        return f"node {self.node}" + (f" ({self.about.machine.host})" if self.about else "")

    def send(self, message: Message, blob: bytes = b"") -> None:
        """One message; a link that does not take it is lost."""
        if self.channel is None:
            return
        try:
            self.channel.send(message, blob)
        except OSError as error:
            self.lose(f"its agent does not answer: {error.strerror or error}")

    def receive(self) -> list[tuple[Message, bytes]]:
        """Receives what has arrived; nothing where the link is lost meanwhile."""
        assert self.channel is not None
        try:
            messages = self.channel.receive()
        except (OSError, ChannelError, ValueError) as error:
            self.lose(f"its agent sent an invalid message: {error}")
            return []
        if messages is None:
            because = f": {self.last_words}" if self.last_words else ""
            self.lose(f"its agent is gone{because}")
            return []
        self.hear()
        self.last_words = next((str(m["ends"]) for m, _ in messages if "ends" in m), "")
        return messages

    def hear(self) -> None:
        """Note that the agent has been heard of just now."""
        self.heard_at = time.monotonic()
        self.silent_s = 0.0

    def lose(self, why: str) -> None:
        """Nothing more is expected of it."""
        self.lost = self.lost or why
        if self.channel is not None:
            self.channel.close()
            self.channel = None
