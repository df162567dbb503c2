"""The message of a rank's error: without secrets, and of limited length."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.host import secrets
from harness.launch.wire.evidence import LOG_BYTES, settle
from harness.launch.wire.messages import MESSAGE_CHARS, RankError

TOKEN = "ghp_" + 12 * "aB3"


@pytest.mark.parametrize("offset", range(0, len(TOKEN) + 1, 7))
def test_a_message_full_of_secrets_shows_no_part_of_one(offset: int) -> None:
    """Masks are shorter than secrets, so a cut secret could move into what remains."""
    message = "x" * offset + f" {TOKEN}" * 5_000 + " the end" + "x" * offset
    shown = RankError.of(ValueError(), message, message).message
    assert TOKEN[4:16] not in shown and TOKEN[-12:] not in shown


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
    assert sum(searched) <= MESSAGE_CHARS + 2 * secrets.LONGEST


def test_a_shortened_log_shows_no_part_of_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(f"begin {TOKEN} " * (LOG_BYTES // 20))
    settle(log)
    shown = log.read_text()
    assert "bytes left out" in shown and len(shown) < LOG_BYTES
    assert TOKEN[4:16] not in shown and TOKEN[-12:] not in shown
