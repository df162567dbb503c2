"""Heartbeats are read atomically across processes; a torn time would end a healthy world."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.launch.wire.beats import Beats, Phase

WRITER = """
import sys
from pathlib import Path
from harness.launch.wire.evidence import Beats, Phase
beats = Beats(Path(sys.argv[1]), 2)
step = 0
while True:
    step += 1
    beats.write(1, Phase.STEADY, step)
"""


def test_a_beat_is_read_back(tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats", 3, create=True)
    beats.write(2, Phase.WARMUP, 7)
    phase, step, silent = Beats(tmp_path / "beats", 3).read(2)
    assert (phase, step) == (Phase.WARMUP, 7)
    assert 0 <= silent < 5
    assert beats.read(0)[0] is Phase.START


def test_no_reader_sees_a_torn_time(tmp_path: Path) -> None:
    """Another process writes as fast as it can while this one reads."""
    beats = Beats(tmp_path / "beats", 2, create=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "beats")])
    try:
        while beats.read(1)[0] is not Phase.STEADY:
            assert writer.poll() is None
        last = reads = 0
        while reads < 20_000 or last < 20_000:
            _, step, silent = beats.read(1)
            reads += 1
            assert silent < 3600, f"silent for {silent} s after {reads} reads: half of two times"
            assert step >= last
            last = step
    finally:
        writer.kill()
        writer.wait()
