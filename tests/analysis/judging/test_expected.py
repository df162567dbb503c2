"""Expected values are written, read back strictly, used as rules, and replaced only with a reason."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging import expected as references
from harness.analysis.verify import rejudge
from harness.base.documents import from_doc, to_doc
from harness.base.errors import ConfigError
from harness.interface.cli.commands.history_baseline import _taken
from harness.interface.cli.main import main
from harness.record import Reason, RunRecord, Status
from tests.editing import change, even, judged, rechain, timed

GOOD = """
[[reference]]
case = "ddp/decoder-nano/weak@2cpu"
metric = "efficiency"
baseline = "plain"
value = 0.9
lower = -0.1
unit = "1"
status = "STATUS"
n = 8
date = 2026-11-21
source = "here"
"""


def test_measured_values_are_written_and_read_back(sample_run: RunRecord, tmp_path: Path) -> None:
    references_read, doubted = references.measured(sample_run, 0.1)
    assert doubted == []
    assert {(r.case, r.metric, r.baseline) for r in references_read} >= {
        ("ddp/decoder-nano/weak@2cpu", "efficiency", "plain"),
        ("ddp/decoder-nano/weak@2cpu", "throughput", None),
    }
    references.write(tmp_path / "r.toml", references_read)
    assert list(references.load(tmp_path / "r.toml")) == references_read


@pytest.mark.parametrize("spoilt", ["noisy host", "wrong training"])
def test_what_no_verdict_could_rest_on_is_no_reference(
    sample_run: RunRecord, spoilt: str, tmp_path: Path
) -> None:
    doc = to_doc(sample_run)
    if spoilt == "noisy host":
        bad = {"check": "load", "level": "bad", "text": "other processes use 99 %", "advice": ""}
        doc["admission"] = [bad]
    else:
        for launch in timed(doc, "@2"):
            launch["wrong"] = ["loss: step 6 gives 1"]
    references_read, doubted = references.measured(from_doc(RunRecord, doc), 0.1)
    of_two = [r for r in references_read if r.case.endswith("@2cpu")]
    assert all(r.metric not in ("efficiency", "throughput") for r in of_two), of_two
    assert any("99 %" in why or "loss: step 6" in why for _, why in doubted)


def test_a_run_passes_its_measured_values(sample_run: RunRecord, tmp_path: Path) -> None:
    def quiet(doc: Any) -> None:
        even(doc, 0.9)

    doc = to_doc(sample_run)
    quiet(doc)
    run = from_doc(RunRecord, doc)
    rules = [r.threshold(run.machine.hardware_class) for r in references.measured(run, 0.1)[0]]
    assert {v.status for v in rejudge(run, rules).verdicts} == {Status.PASS}
    elsewhere = dataclasses.replace(run, settings=dataclasses.replace(run.settings, engine="slurm"))
    assert {v.reason for v in rejudge(elsewhere, rules).verdicts} == {Reason.NOT_COMPARABLE}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("measured", Status.PASS),
        ("derived", Status.PASS),
        ("claimed", Status.RECORDED),
        ("provisional", Status.RECORDED),
    ],
)
def test_only_measured_and_derived_references_can_pass(
    sample_run: RunRecord, tmp_path: Path, status: str, expected: Status
) -> None:
    (tmp_path / "r.toml").write_text(GOOD.replace("STATUS", status))
    (reference,) = references.load(tmp_path / "r.toml")
    rule = reference.threshold(sample_run.machine.hardware_class)

    def only(doc: Any) -> None:
        even(doc, 0.9)
        doc["thresholds"] = [to_doc(rule)]

    assert judged(sample_run, only)["efficiency@2/plain"].status is expected


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('unit = "1"', 'unit = "token/s"', "is in '1', not 'token/s'"),
        ('metric = "efficiency"', 'metric = "eficiency"', "no metric"),
        ("n = 8\n", "", "a measured value needs n"),
        ("lower = -0.1\n", "", "needs lower or upper"),
        ("lower = -0.1", "lower = 0.1", "lower must be <= 0"),
        ('status = "measured"', 'status = "guessed"', "not allowed"),
        ("value", "vlaue", "did you mean 'value'"),
    ],
)
def test_mistakes_in_a_reference_file_are_reported(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = GOOD.replace("STATUS", "measured")
    assert old in text
    (tmp_path / "r.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=says.replace("'", ".")):
        references.load(tmp_path / "r.toml")


def test_replacing_a_known_value_needs_a_reason(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--references", str(tmp_path)]
    again = str(sample.with_name("ddp-nano-again"))
    assert main(["history", "baseline", "set", str(sample), *place]) == 0
    (path,) = tmp_path.glob("*.toml")
    first = path.read_text()
    assert main(["history", "baseline", "set", again, *place]) == 0
    assert path.read_text() == first and "kept" in capsys.readouterr().out
    assert main(["history", "baseline", "accept", again, *place]) == 4
    assert "needs a reason" in capsys.readouterr().err
    assert main(["history", "baseline", "accept", again, *place, "--reason", "new switch"]) == 0
    assert "changed" in capsys.readouterr().out and "new switch" in path.read_text()
    assert main(["history", "baseline", "show", "--references", str(path)]) == 0
    assert "measured" in capsys.readouterr().out


def test_a_better_value_waits_for_a_second_session(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value raised by a lucky session would fail later runs, so a better value needs two
    sessions; a worse one needs only a reason.
    """
    place = ["--references", str(tmp_path), "--reason", "new switch"]
    again = str(sample.with_name("ddp-nano-again"))
    assert main(["history", "baseline", "set", str(sample), "--references", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.toml")
    low = re.sub(
        r"^value = .*", lambda m: f"value = {0.8 * float(m[0][8:])}", path.read_text(), flags=re.M
    )
    path.write_text(low)
    capsys.readouterr()
    assert main(["history", "baseline", "accept", again, *place]) == 4
    assert "in one run only" in capsys.readouterr().err and path.read_text() == low
    assert main(["history", "baseline", "accept", again, *place, "--again", str(sample)]) == 4
    assert "from the same day and used the same nodes" in capsys.readouterr().err
    copy = Path(shutil.copytree(again, tmp_path / "copy"))  # the same run under another name
    change(copy, lambda doc: doc.update(run="another", started_at="2026-11-01T00:00:00+00:00"))
    rechain(copy)
    assert main(["history", "baseline", "accept", again, *place, "--again", str(copy)]) == 4
    assert "is a copy of the run" in capsys.readouterr().err
    high = re.sub(r"^value = .*", lambda m: f"value = {2 * float(m[0][8:])}", low, flags=re.M)
    path.write_text(high)
    assert main(["history", "baseline", "accept", again, *place]) == 0, (
        "a worse value needs only a reason"
    )


@pytest.mark.parametrize(
    ("new", "old", "held", "taken"),
    [(1.0, 0.9, None, None), (1.0, 0.9, 0.91, None), (1.0, 0.9, 0.95, 0.95), (1.0, 0.9, 1.1, 1.0),
     (1.0, 0.99, None, 1.0), (0.8, 0.9, None, 0.8), (1.0, None, None, 1.0)],
)  # fmt: skip
def test_the_weaker_of_two_sessions_sets_a_better_expected_value(
    new: float, old: float | None, held: float | None, taken: float | None
) -> None:
    def of(value: float | None) -> references.ExpectedValue | None:
        if value is None:
            return None
        return references.ExpectedValue(
            case="c",
            metric="efficiency",
            unit="1",
            value=value,
            status="measured",
            date="",
            source="",
        )

    first = of(new)
    assert first is not None
    kept = _taken(first, of(old), of(held))
    assert (None if kept is None else kept.value) == taken
