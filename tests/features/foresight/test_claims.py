"""Claims: computed tables are consistent, edited ones are not, and the printed digits set the
tolerance.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from scipy.stats import t

from harness.features.foresight.claims import ClaimedColumn, ClaimStatus, audit, column, figure
from harness.interface.cli.main import main

ROOT = Path(__file__).parents[3]
#: Epochs of 480, 245, 128 and 68 s with claimed speedups of 1.95, 3.8 and 7.6.
USUAL = ROOT / "examples/audit/claims.md"


def table(rows: list[dict[ClaimedColumn, str]]) -> list[dict[ClaimedColumn, object]]:
    return [{c: figure(t, c) for c, t in row.items()} for row in rows]  # type: ignore[misc]


def test_the_example_claims_are_inconsistent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "table", str(USUAL)]) == 1
    lines = capsys.readouterr().out
    assert "speedup 7.6x is +7.7% off: 480 / 68 gives 7 to 7.119" in " ".join(lines.split())
    assert "communication 3.2 % is more than the 2.3% that 480 / 245 leaves" in " ".join(
        lines.split()
    )
    assert main(["verify", "table", str(USUAL), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)["rows"]
    assert [r["status"] for r in document] == [
        "consistent",
        "inconsistent",
        "consistent",
        "inconsistent",
    ]


@given(
    times=st.lists(st.floats(1.0, 5000.0), min_size=4, max_size=4),
    digits=st.integers(0, 3),
    more=st.integers(0, 3),
)
def test_a_computed_table_is_never_inconsistent(times: list[float], digits: int, more: int) -> None:
    rows = []
    for ranks, time in zip((1, 2, 4, 8), times, strict=True):
        speedup = times[0] / time
        rows.append({
            ClaimedColumn.RANKS: str(ranks), ClaimedColumn.TIME: f"{time:.{digits}f}",
            ClaimedColumn.SPEEDUP: f"{speedup:.{more}f}x",
            ClaimedColumn.EFFICIENCY: f"{100 * speedup / ranks:.{more}f}%",
        })  # fmt: skip
    if float(rows[0][ClaimedColumn.TIME]) <= 0 or min(times) < 2 * 10.0**-digits:
        return
    assert ClaimStatus.INCONSISTENT not in {f.status for f in audit(table(rows))}  # type: ignore[arg-type]


@given(off=st.floats(0.03, 0.5), at=st.integers(1, 3), up=st.booleans())
def test_a_wrong_speedup_is_reported_in_its_row(off: float, at: int, up: bool) -> None:
    rows = [
        {
            ClaimedColumn.RANKS: str(n),
            ClaimedColumn.TIME: f"{1000 / s:.1f}",
            ClaimedColumn.SPEEDUP: f"{s:.2f}",
        }
        for n, s in ((1, 1.0), (2, 1.9), (4, 3.6), (8, 7.0))
    ]
    wrong = float(rows[at][ClaimedColumn.SPEEDUP]) * (1 + off if up else 1 - off)
    rows[at][ClaimedColumn.SPEEDUP] = f"{wrong:.2f}"
    statuses = [f.status for f in audit(table(rows))]  # type: ignore[arg-type]
    assert [i for i, s in enumerate(statuses) if s is ClaimStatus.INCONSISTENT] == [at]


@pytest.mark.parametrize(
    ("text", "of", "low", "high"),
    [
        ("1.95x", ClaimedColumn.SPEEDUP, 1.945, 1.955),
        ("480 s", ClaimedColumn.TIME, 479.5, 480.5),
        ("1,234.5", ClaimedColumn.THROUGHPUT, 1234.45, 1234.55),
        ("97.6 %", ClaimedColumn.EFFICIENCY, 0.9755, 0.9765),
        ("0.976", ClaimedColumn.EFFICIENCY, 0.9755, 0.9765),
        ("98", ClaimedColumn.EFFICIENCY, 0.975, 0.985),
        ("8 GPUs", ClaimedColumn.RANKS, 8, 8),
        ("1.2e4", ClaimedColumn.THROUGHPUT, 11500, 12500),
    ],
)
def test_a_figure_has_the_precision_of_its_digits(
    text: str, of: ClaimedColumn, low: float, high: float
) -> None:
    seen = figure(text, of)
    assert seen is not None and (seen.low, seen.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("GPUs", ClaimedColumn.RANKS), ("World size", ClaimedColumn.RANKS), ("num_gpus", ClaimedColumn.RANKS),
        ("Time (s)", ClaimedColumn.TIME), ("s an epoch", ClaimedColumn.TIME), ("step time [ms]", ClaimedColumn.TIME),
        ("images/s", ClaimedColumn.THROUGHPUT), ("Speed-up", ClaimedColumn.SPEEDUP),
        ("Scaling efficiency", ClaimedColumn.EFFICIENCY), ("comm overhead", ClaimedColumn.COMMUNICATION),
        ("price", None), ("", None),
    ],
)  # fmt: skip
def test_headings_are_recognized_by_common_names(heading: str, known: ClaimedColumn | None) -> None:
    assert column(heading) is known


@pytest.mark.parametrize(
    ("name", "content", "exit_status"),
    [
        ("t.csv", "gpus,throughput,speedup\n1,100,1\n4,380,3.8\n", 0),
        ("t.csv", "gpus,speedup\n1,1\n4,3.8\n", 5),
        ("t.csv", "gpus,efficiency\n4,95%\n", 5),
        ("t.toml", '[[row]]\ngpus = 1\nseconds = 10.0\n[[row]]\ngpus = 2\nseconds = 5.0\nx = 3\n', 1),
        ("t.csv", "a,b\n1,2\n", 4),
        ("t.toml", "[[row]\n", 4),
        ("t.csv", "", 4),
        ("none.csv", None, 4),
    ],
)  # fmt: skip
def test_the_exit_status_follows_the_table(
    name: str, content: str | None, exit_status: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert main(["verify", "table", str(path)]) == exit_status
    screen = capsys.readouterr()
    assert "Traceback" not in screen.err and (exit_status != 4 or "try" in screen.err)


def test_an_uncheckable_row_states_what_is_missing() -> None:
    rows = [
        {ClaimedColumn.RANKS: "1", ClaimedColumn.TIME: "10"},
        {ClaimedColumn.RANKS: "8", ClaimedColumn.EFFICIENCY: "0.9"},
    ]
    *_, last = audit(table(rows))  # type: ignore[arg-type]
    assert last.status is ClaimStatus.UNCHECKABLE
    assert last.why == (
        "only efficiency is stated: it can be checked with a time or a throughput here and in the smallest row",
    )


def test_a_press_release_is_compared_with_its_stated_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 5.54 to 2.02 minutes on four times the GPUs is an efficiency of 0.686, calculated by
    hand.
    """
    page = tmp_path / "audit.html"
    words = [
        "verify",
        "table",
        str(ROOT / "examples/audit/near-linear.toml"),
        "--page",
        str(page),
        "--json",
    ]
    assert main(words) == 5, "the table states nothing that could be inconsistent"
    rows = json.loads(capsys.readouterr().out)["rows"]
    low, high = rows[2]["efficiency"]
    assert low < 5.54 / 2.02 / 4 < high and high - low < 0.01
    assert rows[4]["efficiency"][0] < 3.09 / 2.02 / 2 < rows[4]["efficiency"][1]
    text = page.read_text()
    assert "near-linear" in text and "leaves out" in text and "<svg" in text
    assert "0.69 by minutes to the target" in text and "0.85 as stated" in text


def test_times_of_different_kinds_are_never_divided(tmp_path: Path) -> None:
    """For example, 1.71 s per block and 1.31 s per step are not comparable."""
    rows = table([
        {ClaimedColumn.RANKS: "1", ClaimedColumn.TIME: "10"},
        {ClaimedColumn.RANKS: "2", ClaimedColumn.TIME: "5", ClaimedColumn.SPEEDUP: "3x"},
    ])  # fmt: skip
    assert audit(rows)[1].status is ClaimStatus.INCONSISTENT  # type: ignore[arg-type]
    apart = audit(rows, ["block", "step"])  # type: ignore[arg-type]
    assert apart[1].status is ClaimStatus.UNCHECKABLE, "the baseline of the 3x is not in the table"
    assert apart[1].speedup is None
    half = tmp_path / "half.csv"
    half.write_text("ranks,time,kind\n1,10,step\n2,5,\n")
    assert main(["verify", "table", str(half)]) == 4


@pytest.mark.parametrize(
    "text",
    ["ranks,time\n-1,100\n", "ranks,time\n0,100\n", "ranks,time\n1,0\n", "ranks,time\n1,1e400\n2,3\n",
     "ranks,time\n1.5,3\n", "ranks,time,efficiency\n1,3,-5%\n"],
)  # fmt: skip
def test_impossible_values_in_a_table_are_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert main(["verify", "table", str(path)]) == 4
    error = capsys.readouterr().err
    assert "impossible for a training run" in error and "Traceback" not in error


def test_the_interval_of_a_ratio_follows_from_three_launches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare two machines of equal size: the mean of each, and Welch's interval of logarithms by
    hand.
    """
    page = tmp_path / "audit.html"
    words = [
        "verify",
        "table",
        str(ROOT / "examples/audit/faster-machine.toml"),
        "--page",
        str(page),
    ]
    assert main([*words, "--json"]) == 0
    _, faster, *_ = json.loads(capsys.readouterr().out)["rows"]
    assert faster["status"] == "consistent" and faster["efficiency"] is None
    assert faster["speedup"][0] < 27.438 / 17.412 < faster["speedup"][1]
    ours = [math.log(x) for x in (17.538, 17.517, 17.181)]
    theirs = [math.log(x) for x in (25.966, 28.736, 27.612)]
    parts = [statistics.variance(x) / 3 for x in (ours, theirs)]
    freedom = 2 * sum(parts) ** 2 / sum(v**2 for v in parts)
    half = t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    middle = statistics.fmean(theirs) - statistics.fmean(ours)
    assert faster["between_launches"] == pytest.approx(
        [math.exp(middle - half), math.exp(middle + half)], rel=1e-6
    )
    assert "1.58 times as fast (1.40 to 1.77 as launches differ) by minutes" in page.read_text()


#: Headings that distinguish several scaling sweeps in one table.
DIVIDING = (
    "Method", "Benchmark", "Cluster", "System", "Dataset", "Schedule", "Backend", "Compiler",
    "Technique", "Parallelism", "Batch", "Batch size / GPU", "Global batch", "Sequence length",
    "Hardware", "Node", "Machine", "Library", "Config", "Experiment", "Run", "Date", "Year", "Layers",
    "Params", "mbs", "TP", "PP", "Strategy", "Framework", "Precision", "dtype", "Seq",
    "Interconnect", "Network", "GPU", "Version", "Model", "Fabric",
)  # fmt: skip


@pytest.mark.parametrize("heading", DIVIDING)
@pytest.mark.parametrize("values", [("a", "b"), ("8", "16")])
def test_two_correct_sweeps_in_one_table_are_not_inconsistent(
    tmp_path: Path, heading: str, values: tuple[str, str]
) -> None:
    path = tmp_path / "two.md"
    rows = [(values[0], 8, 1000, 1.0), (values[0], 16, 980, 1.96),
            (values[1], 8, 700, 1.0), (values[1], 16, 690, 1.97)]  # fmt: skip
    lines = [f"| {heading} | GPUs | tokens/s/GPU | Speedup |", "|---|---|---|---|"]
    path.write_text("\n".join([*lines, *(f"| {a} | {b} | {c} | {d} |" for a, b, c, d in rows)]))
    assert main(["verify", "table", str(path)]) in (0, 5)


def test_two_tables_in_one_file_are_checked_separately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    head = "| GPUs | images/s | speedup |\n|---|---|---|\n"
    text = f"# A\n\n{head}| 1 | 759 | 1.00 |\n| 4 | 2837 | 3.74 |\n\n# B\n\n"
    path.write_text(f"{text}{head}| 1 | 326 | 1.00 |\n| 4 | 1217 | 3.73 |\n")
    assert main(["verify", "table", str(path)]) == 0
    assert "4 consistent" in capsys.readouterr().out
    path.write_text(f"{text}{head}| 1 | 326 | 1.00 |\n| 4 | 1217 | 3.99 |\n")
    assert main(["verify", "table", str(path)]) == 1, (
        "a wrong speedup within one table must still be found"
    )


def test_an_unusable_table_states_its_reason_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpus,img/s,speedup\n1,100,1\n4,380,3.8\n1,50,1\n4,100,3.8\n")
    assert main(["verify", "table", str(path)]) == 5
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("their ranks neither only grow") == 1 and shown.count("as above") == 3


#: The columns after the ranks, the rows, and whether the table is correct under a common meaning of
#: its columns.
MEANT = {
    "weak scaling": ("s/iter,speedup", [(1, 1.0, 1), (2, 1.02, 1.96), (8, 1.09, 7.34)], True),
    "per rank": ("throughput,speedup", [(1, 100, 1), (2, 97, 1.94), (4, 95, 3.8)], True),
    "ideal base": ("time,speedup,efficiency", [(4, 100, 4, 1), (8, 52, 7.7, 0.96)], True),
    "unsharded base": ("tokens/s,efficiency", [(8, 31000, 0.97), (16, 60800, 0.95)], True),
    "other machine": ("minutes,speedup", [(1, 90, 1), (8, 12, 15), (16, 6.4, 28.1)], True),
    "hours": ("time,speedup", [(1, "8:20:00", 1), (8, "1:08:40", 7.3)], True),
    "one row off": ("time,speedup", [(1, 90, 1), (8, 12, 7.5), (16, 6.4, 15.1)], False),
    "weak, one off": ("s/iter,speedup", [(1, 1.0, 1), (2, 1.02, 1.96), (8, 1.3, 7.9)], False),
    "each off": ("time,speedup", [(1, 90, 1), (8, 12, 7.9), (16, 6.4, 15.8)], False),
    "base off": ("time,speedup", [(1, 90, 1.2), (8, 12, 7.5), (16, 6.4, 14.1)], False),
}


@pytest.mark.parametrize(("columns", "rows", "honest"), MEANT.values(), ids=MEANT)
def test_a_table_correct_under_a_common_meaning_is_not_inconsistent(
    tmp_path: Path, columns: str, rows: list[tuple[object, ...]], honest: bool
) -> None:
    path = tmp_path / "meant.csv"
    path.write_text("\n".join([f"gpus,{columns}", *(",".join(map(str, row)) for row in rows)]))
    assert (main(["verify", "table", str(path)]) == 1) is not honest


def test_an_empty_cell_repeats_the_one_above(tmp_path: Path) -> None:
    path = tmp_path / "merged.md"
    rows = [("A", 1, "1.00", 1), ("", 2, 0.52, 1.92), ("B", 8, "2.00", 1), ("", 16, 1.05, "1.90")]
    lines = ["| Model | GPUs | s/step | Speedup |", "|---|---|---|---|"]
    path.write_text("\n".join([*lines, *(f"| {a} | {b} | {c} | {d} |" for a, b, c, d in rows)]))
    assert main(["verify", "table", str(path)]) == 0


HTML = """<h2>Scaling on one node</h2>
<table><tr><th>GPUs</th><th>images/s</th><th>Speedup</th></tr>
<tr><td>1</td><td>400</td><td>1.0</td></tr><tr><td>8</td><td>3000</td><td>{speedup}</td></tr></table>
"""
TRANSPOSED = """|  | 1 GPU | 2 GPUs | 8 GPUs |
|---|---|---|---|
| images/s | 400 | 790 | 3050 |
| Speedup | 1 | 1.98 | {speedup} |
"""
NUMBERED = """| GPUs | 1 | 2 | 4 |
|---|---|---|---|
| Step time (ms) | 100 | 52 | 28 |
| Speedup | 1 | 1.92 | {speedup} |
"""


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [(HTML, "7.5x", "9.5x"), (TRANSPOSED, "7.6", "6.6"), (NUMBERED, "3.57", "3.0")],
)
def test_html_and_transposed_tables_are_read(
    tmp_path: Path, text: str, right: str, wrong: str
) -> None:
    path = tmp_path / "README.md"
    for speedup, status in ((right, 0), (wrong, 1)):
        path.write_text(text.format(speedup=speedup))
        assert main(["verify", "table", str(path)]) == status


@pytest.mark.parametrize(
    ("file", "status", "says"),
    [
        ("same-arms", 5, ("speedup of 4.610 to 4.612", "speedup of 1.000 to 1.000")),
        ("grok1", 1, ("512 ranks inconsistent throughput 572679.0 is -50.0% off",)),
        ("near-linear", 5, ("a speedup of 2.733 to 2.752, an efficiency of 0.683 to 0.688",)),
    ],
)
def test_the_audits_of_the_documentation_say_what_it_states(
    file: str, status: int, says: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "table", str(ROOT / f"examples/audit/{file}.toml")]) == status
    shown = " ".join(capsys.readouterr().out.split())
    assert all(words in shown for words in says), shown
