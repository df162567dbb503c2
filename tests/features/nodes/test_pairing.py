"""A pair that failed or computed wrong results was not timed, so its nodes may remain unmeasured."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import Exit, LaunchError
from harness.cases import Device, Site
from harness.features.nodes import pairing
from harness.features.nodes.commands import network_pairs as verb
from harness.features.nodes.pairing import Pairer
from harness.interface.cli.main import main
from harness.record.fabric import Row

SITE = Site(device=Device.CPU, backend="gloo", nodes=(1,) * 4)


def row(*, right: bool = True) -> Row:
    return Row(
        nodes=(1, 1), operation="all_reduce", payload_bytes=1 << 22, transport="tcp", time_s=0.1,
        right=right,
    )  # fmt: skip


def pairer(answer: Any) -> Pairer:
    """Return a pairer whose bench returns ``answer(pair)`` for every pair of nodes."""
    notes: list[str] = []
    run = SimpleNamespace(
        nodes=[SimpleNamespace(host=f"n{i}") for i in range(4)], notes=notes, folder=None,
        elapsed_s=0.0, seal=lambda: None, set_suspects=lambda suspects: None,
    )  # fmt: skip
    bench = SimpleNamespace(
        sweep_together=lambda cases, folder, hosts, only: [answer(pair) for pair in hosts]
    )
    progress = SimpleNamespace(show=lambda moment: None, note=lambda text: None)
    session: Any = SimpleNamespace(
        run=run, bench=bench, progress=progress, ready=lambda: None, enter_broken=lambda: None
    )
    return Pairer(session, SITE, 3)


def test_a_pair_with_wrong_results_is_not_timed() -> None:
    pairs = pairer(lambda pair: [row(right=2 not in pair)])
    slow = pairs.reduce({})
    assert pairing.unseen(slow) == ("n2",)
    assert all(p.time_s is None for p in slow.pairs if "n2" in (p.a, p.b))
    assert all(p.time_s == 0.1 for p in slow.pairs if "n2" not in (p.a, p.b))
    assert any("a rank got a wrong result" in note for note in pairs._session.run.notes)


def test_a_failed_launch_is_not_timed() -> None:
    pairs = pairer(lambda pair: LaunchError("node 1 is lost") if 1 in pair else [row()])
    assert pairing.unseen(pairs.reduce({})) == ("n1",)
    assert any(note.endswith("node 1 is lost") for note in pairs._session.run.notes)


@pytest.mark.parametrize("broken", [True, False])
def test_every_node_is_measured_despite_one_failure(broken: bool) -> None:
    once = {0: broken}

    def answer(pair: tuple[int, int]) -> Any:
        first, once[0] = once[0], False
        return LaunchError("once") if first else [row()]

    assert pairing.unseen(pairer(answer).reduce({})) == (), (
        "later rounds measure the node in other pairs"
    )


def test_an_unmeasured_node_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def asked(answer: Any) -> int:
        pairs = pairer(answer)
        session = SimpleNamespace(
            save=lambda complete: None, run=SimpleNamespace(folder=tmp_path / "run")
        )
        monkeypatch.setattr(verb.measuring, "session", lambda *_: contextlib.nullcontext(session))
        monkeypatch.setattr(verb, "Pairer", lambda *_: pairs)
        return main(["network", "pairs", "--engine", "emulated", "--nodes", "4x1"])

    assert asked(lambda pair: [row()]) == Exit.PASSED
    assert asked(lambda pair: [row(right=3 not in pair)]) == Exit.ERROR
    assert "no launch succeeded on n3" in capsys.readouterr().out
