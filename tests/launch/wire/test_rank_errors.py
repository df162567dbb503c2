"""The message of a rank's error: without secrets, and of limited length."""

from __future__ import annotations

import pytest

from harness.host import secrets
from harness.launch.wire.messages import MESSAGE_CHARS, SECRET_CHARS, RankError

TOKEN = "ghp_" + 12 * "aB3"


@pytest.mark.parametrize("at", [0, MESSAGE_CHARS // 2 - 10, 1 << 20, -MESSAGE_CHARS // 2 - 10, -40])
def test_a_long_message_is_shortened_without_a_part_of_a_secret(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Only what may remain is searched: a message can be a printed tensor of gigabytes."""
    searched = list[int]()
    masked = secrets.masked

    def counted(text: str) -> str:
        searched.append(len(text))
        return masked(text)

    monkeypatch.setattr(secrets, "masked", counted)
    words = "planted " * (1 << 18)
    place = at if at >= 0 else len(words) + at
    message = f"{words[:place]} {TOKEN} {words[place:]}"
    error = RankError.of(ValueError(), message, "")
    assert len(error.message) < MESSAGE_CHARS + 100 and "characters" in error.message
    assert TOKEN[:8] not in error.message and TOKEN[-8:] not in error.message
    assert sum(searched) <= MESSAGE_CHARS + 2 * SECRET_CHARS
