"""The headline and the short forms of a run: for managers and for CI systems."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from harness.base.errors import Exit
from harness.cases.typed import ONE_PROCESS
from harness.interface.cli.main import main
from harness.interface.report import tables
from harness.interface.report.digest import document, markdown, table
from harness.interface.report.headline import decide, headline, why_open
from harness.interface.report.page.page import render
from harness.interface.report.text import paint
from harness.record import Cause, Reason, RunRecord, Status
from harness.record.fabric import Row


def changed(run: RunRecord, **fields: Any) -> RunRecord:
    """Return the run with the verdict on its only rule changed."""
    verdicts = [replace(v, **fields) if v.rule else v for v in run.verdicts]
    return replace(run, verdicts=tuple(verdicts))


def test_the_headline_of_a_passing_run_states_its_result(sample_run: RunRecord) -> None:
    assert headline(sample_run) == (
        "PASS: 1 of 1 threshold passes."
        " ddp/decoder-nano/weak: scaling efficiency 88% [73%, 105%] on 2 CPU ranks"
    )
    assert decide(sample_run) == []


def test_a_run_that_measured_nothing_says_so(sample_run: RunRecord) -> None:
    nothing = replace(sample_run, verdicts=())
    assert headline(nothing) == "SKIP: nothing was measured"
    cut = replace(nothing, complete=False)
    assert headline(cut) == "SKIP: nothing was measured: the run was interrupted"
    assert headline(replace(sample_run, complete=False)).startswith(
        "PASS: 1 of 1 threshold passes; the run was interrupted"
    )
    missing = dict(value=None, rule=None, status=Status.SKIP, detail="2 GPUs are needed")
    skipped = tuple(replace(verdict, **missing) for verdict in sample_run.verdicts)
    run = replace(sample_run, verdicts=skipped)
    assert headline(run) == "SKIP: nothing was measured: 2 GPUs are needed"


def test_thresholds_that_do_not_apply_are_not_called_missing(sample_run: RunRecord) -> None:
    unjudged = tuple(
        replace(verdict, rule=None, status=Status.RECORDED) for verdict in sample_run.verdicts
    )
    run = replace(sample_run, verdicts=unjudged)
    assert "no threshold applies" in headline(run)
    assert "no threshold is configured" in headline(replace(run, thresholds=()))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (dict(reason=Reason.SPANS_BOUND, more=12), "about 12 more pairs"),
        (dict(reason=Reason.SPANS_BOUND), "over 100 more pairs, or a quieter host"),
        (dict(reason=Reason.NOISY_HOST), "a quieter host"),
        (dict(reason=Reason.OUT_OF_TIME, value=None, low=None, high=None), "more time"),
    ],
)
def test_an_undecided_verdict_states_what_would_decide_it(
    sample_run: RunRecord, fields: dict[str, Any], says: str
) -> None:
    run = changed(sample_run, status=Status.INCONCLUSIVE, n=4, **fields)
    (line,) = decide(run)
    assert says in line and line.endswith(
        ": scaleproof run ddp/decoder-nano/weak --cpus 2 --no-fabric"
    )
    assert headline(run).startswith("INCONCLUSIVE: 0 of 1 threshold passes, 1 inconclusive")


def test_a_run_that_ran_out_of_time_states_the_time_it_needs(sample_run: RunRecord) -> None:
    """The estimate uses the run's launches; all were made here, so it cannot be much longer than
    the run.
    """
    (plan,) = sample_run.plans
    words = ("scaleproof", "run", "ddp/decoder-nano/weak", "--time-budget", "5s", "--cpus", "2")
    settings = replace(sample_run.settings, budget_s=5.0, argv=words)
    cut = replace(sample_run, settings=settings, out_of_time=(plan.hash,), elapsed_s=61.0)
    cut = changed(cut, status=Status.INCONCLUSIVE, reason=Reason.OUT_OF_TIME, value=None)
    mean_s = {
        arm.name: fmean(x.wall_s for x in cut.launches if x.case == arm.case.hash)
        for arm in plan.arms
    }
    total_s = 61.0 + 1.2 * (1 + 2 * plan.protocol.min_blocks) * sum(mean_s.values())
    (line,) = decide(cut)
    assert line.startswith("with time for all of it: scaleproof run ddp/decoder-nano/weak --cpus 2")
    minutes = int(line.rpartition(" ")[2].removesuffix("m"))
    assert 60 * (minutes - 1) < total_s <= 60 * minutes
    (never,) = decide(replace(cut, launches=()))
    assert never.endswith("m"), "without launches the estimate uses the budget"


def test_a_script_without_local_rank_gets_torchs_newer_launcher(
    sample_run: RunRecord,
) -> None:
    """The error names a rank, but settings of ranks would not fix it."""
    launcher = "scaleproof run --script --cpus 2 -- python -m torch.distributed.launch train.py"
    settings = replace(sample_run.settings, argv=tuple(launcher.split()))
    cause = Cause(
        rank=0, kind="exception", phase="build", step=0, sure=True,
        message="left with status 2: train.py: error: unrecognized arguments: --local-rank=0",
    )  # fmt: skip
    (first, *others) = sample_run.launches
    run = replace(sample_run, settings=settings, launches=(replace(first, cause=cause), *others))
    assert decide(run) == [
        "because its launcher passes --local-rank: scaleproof run --script --cpus 2 --"
        " python -m torch.distributed.run train.py"
    ]


def test_single_processes_started_by_accelerate_get_a_command_for_one_group(
    sample_run: RunRecord,
) -> None:
    words = "scaleproof run --script --cpus 2 -- accelerate launch --cpu train.py --lr 1"
    settings = replace(sample_run.settings, argv=tuple(words.split()))
    cause = Cause(
        rank=0, kind="exception", phase="build", step=0, sure=True,
        message=f"a process trains without a rank; {ONE_PROCESS}",
    )  # fmt: skip
    (first, *others) = sample_run.launches
    run = replace(sample_run, settings=settings, launches=(replace(first, cause=cause), *others))
    assert decide(run) == [
        "with ranks that form one group: ACCELERATE_USE_CPU=true scaleproof run --script"
        " --cpus 2 -- train.py --lr 1"
    ]


SPAWNING = (
    "python t.py: each rank starts ranks of its own: the script is its own launcher, and no word"
)


@pytest.mark.parametrize(
    ("words", "cause", "proposed"),
    [
        (
            "spawn.py --lr 1", SPAWNING,
            ["if --world-size is its number of ranks: {} -- spawn.py --lr 1 --world-size '{{ranks}}'"],
        ),
        (
            "plain.py --devices 0 1", SPAWNING,
            ["with plain.py --devices 0 1 in launch.sh, for $1 ranks: {} -- bash launch.sh '{{ranks}}'"],
        ),
        (
            "spawn.py world.json", SPAWNING,
            ["with {{ranks}} as the number in world.json: {} -- spawn.py world.json"],
        ),
        (
            "plain.py", "KeyError: 'OMPI_COMM_WORLD_RANK' (plain.py:1)",
            [
                "with the variables that mpirun sets: OMPI_COMM_WORLD_RANK=0"
                " OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
                " OMPI_COMM_WORLD_NODE_RANK=0 {} -- plain.py"
            ],
        ),
        ("plain.py", "KeyError: 'lr' (plain.py:1)", []),
    ],
)  # fmt: skip
def test_a_script_whose_ranks_did_not_start_gets_a_working_command(
    words: str, cause: str, proposed: list[str], sample_run: RunRecord, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The proposal uses the script's option for the number of ranks, or the variable that it reads."""
    (tmp_path / "spawn.py").write_text("parser.add_argument('--world-size', type=int)\n")
    (tmp_path / "plain.py").write_text("parser.add_argument('--lr', type=float)\n")
    monkeypatch.chdir(tmp_path)
    ours = "scaleproof run --script --cpus 2"
    settings = replace(sample_run.settings, argv=(*ours.split(), "--", *words.split()))
    broke = Cause(rank=0, kind="exception", phase="build", step=0, sure=True, message=cause)
    (first, *others) = sample_run.launches
    run = replace(sample_run, settings=settings, launches=(replace(first, cause=broke), *others))
    assert decide(run) == [sentence.format(ours) for sentence in proposed]


@pytest.mark.parametrize("status", [Status.INCONCLUSIVE, Status.ERROR])
def test_no_sentence_to_quote_has_a_figure_that_is_not_decided(
    sample_run: RunRecord, status: Status
) -> None:
    run = changed(sample_run, status=status, reason=Reason.SPANS_BOUND)
    assert "of a rank's speed" not in headline(run)


@pytest.mark.parametrize(
    ("status", "heading"),
    [
        (Status.RECORDED, "RECORDED: results only"),
        (Status.INCONCLUSIVE, "INCONCLUSIVE: "),
        (Status.ERROR, "ERROR: "),
    ],
)
def test_a_run_without_rules_is_headed_by_the_worst_of_what_came_of_it(
    sample_run: RunRecord, status: Status, heading: str
) -> None:
    """The exit status is that of the worst verdict, so another status in the headline would
    mislead.
    """
    verdict = replace(sample_run.verdicts[0], status=status, rule=None, detail="why")
    run = replace(sample_run, thresholds=(), verdicts=(verdict,))
    assert headline(run).startswith(heading)


def test_a_need_of_several_verdicts_is_printed_once(sample_run: RunRecord) -> None:
    run = changed(sample_run, status=Status.INCONCLUSIVE, reason=Reason.NOISY_HOST)
    undecided = next(v for v in run.verdicts if v.rule)
    many = replace(run, verdicts=(undecided,) * 3)
    assert decide(many) == [f"3 results by a quieter host: {shlex.join(run.settings.argv)}"]


def test_the_headline_names_the_worst_requirement(sample_run: RunRecord) -> None:
    run = changed(sample_run, status=Status.FAIL, value=0.4, low=0.35, high=0.45)
    assert (
        "ddp/decoder-nano/weak@2cpu: efficiency is 0.4 [0.35, 0.45], threshold >=0.55"
        in headline(run)
    )


def test_short_forms_contain_every_verdict(sample_run: RunRecord) -> None:
    rows = list(csv.DictReader(table(sample_run)))
    assert [r["status"] for r in rows] == ["PASS", "RECORDED", "RECORDED"]
    assert float(rows[0]["value"]) == document(sample_run)["verdicts"][0]["value"]
    assert document(sample_run)["exit"] == 0
    assert [row["reproducible"] for row in document(sample_run)["verdicts"]] == [True] * 3
    lines = markdown(sample_run)
    assert lines[0].startswith("### PASS") and sum(line.startswith("| ") for line in lines) == 4


def test_an_error_is_also_a_json_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise ``jq`` would fail when a program reads the error."""
    assert main(["verify", str(tmp_path), "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "no record.json here" and answer["try"] == "ls results/runs/*/*"


def test_a_count_of_zero_failures_is_not_red() -> None:
    assert "\033" not in paint("1 of 1 PASS, 0 FAIL").partition(", ")[2]
    assert "\033[31;1mFAIL" in paint("10 FAIL")


def test_the_page_starts_with_the_headline_and_links_to_its_cases(sample_run: RunRecord) -> None:
    page = render(changed(sample_run, value=1.5, low=1.2, high=1.9))
    assert page.index("1 of 1 threshold passes") < page.index('<h2 id="scaling">')
    assert 'href="#case-ddp-decoder-nano-weak-2cpu"' in page
    assert 'id="case-ddp-decoder-nano-weak-2cpu"' in page and "bound 0.55" in page


def test_a_proposal_contains_a_plot_a_table_and_the_method(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(sample, tmp_path / "run"))
    assert main(["report", str(run), "--proposal"]) == 0
    text = (run / "proposal.md").read_text()
    assert "| 2cpu |" in text and "Reproduce: `scaleproof run ddp/decoder-nano/weak" in text
    assert "compared with those of a training on one device" in text
    assert (run / "proposal.svg").read_text().startswith("<svg xmlns")
    assert text.splitlines()[0] in capsys.readouterr().out


def test_an_error_shared_by_several_verdicts_is_printed_once(sample_run: RunRecord) -> None:
    """Three figures that a failing file prevented share one sentence."""
    broken = [
        replace(v, status=Status.ERROR, reason=Reason.LAUNCH_FAILED, value=None, low=None, high=None,
                detail=f"{v.case}: AttributeError: no 'build' (mine/net.py:3)")
        for v in sample_run.verdicts
    ]  # fmt: skip
    run = replace(sample_run, verdicts=tuple(broken))
    run = replace(run, verdicts=tuple(replace(v, rule="asked") for v in broken))
    text = " ".join(why_open(run))
    assert text.count("AttributeError") == 1 and "(and 2 more)" in text
    every = " ".join(" ".join(tables.verdict_lines(run, 100)).split())
    assert every.count("AttributeError") == 3


def test_a_measured_network_is_a_result(sample_run: RunRecord) -> None:
    """Without a threshold it is RECORDED. A network that exchanged nothing is not."""
    row = Row(
        nodes=(2,), operation="all_reduce", payload_bytes=8, transport="tcp", time_s=1e-4, right=True
    )  # fmt: skip
    lenient = replace(sample_run.settings, require_verdict=False)
    asked = dict(plans=(), verdicts=(), launches=(), settings=lenient)
    measured = replace(sample_run, **asked, fabric=(row,))  # type: ignore[arg-type]
    assert headline(measured) == "RECORDED: the network was measured, no threshold applies"
    assert document(measured)["exit"] == measured.exit_status == Exit.PASSED
    required = replace(lenient, require_verdict=True)
    assert replace(measured, settings=required).exit_status == Exit.NOTHING_JUDGED
    silent = replace(measured, fabric=(replace(row, time_s=None, refused="no links"),))
    assert headline(silent) == "SKIP: nothing was measured"
    assert silent.exit_status == Exit.NOTHING_JUDGED


def test_only_plans_are_continued(sample_run: RunRecord) -> None:
    """The interrupted measurement of a network is made again by the command that was typed."""
    folder = Path("results/runs/c607/a")
    run = replace(sample_run, complete=False)
    assert run.continuation(folder) == f"scaleproof run --resume {folder}"
    typed = replace(run.settings, argv=("scaleproof", "network", "--cpus", "2"))
    assert (
        replace(run, plans=(), settings=typed).continuation(folder) == "scaleproof network --cpus 2"
    )
