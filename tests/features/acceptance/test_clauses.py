"""Contracts as files: a mistake is reported with its line, and no unit passes without a
measurement.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import ScaleproofError
from harness.cases import Device, Site
from harness.features.acceptance import clauses
from harness.features.acceptance.contract import Contract, load_contract, shipped
from harness.features.acceptance.handover import handover
from harness.host.machine import detect
from harness.interface.cli.main import main
from harness.record import Purpose, RunRecord, Status
from harness.record.recovery import FaultedTraining, Mark, TrainingAttempt

TODAY = datetime.date(2026, 11, 26)
EXAMPLES = Path(__file__).parents[3] / "examples" / "contracts"
CLAUSE = """
[[clause]]
name = "scales"
says = "two ranks are worth having"
asked_by = "us"
case = "ddp/decoder-nano/weak"
mode = "weak"
baseline = "plain"
world = 2
metric = "efficiency"
"""


def written(folder: Path, text: str) -> Contract:
    path = folder / "contract.toml"
    path.write_text(text)
    return load_contract(path)


def word(contract: Contract, run: RunRecord, folder: Path, accepted: Any = ()) -> Status | None:
    """Return the status of the contract's only clause."""
    (only,) = handover([(run, folder)], TODAY, contract, accepted).requirements
    return only.status


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_contract_states_who_asks_for_what(name: str) -> None:
    contract = load_contract(shipped()[name])
    assert contract.terms.title
    assert all(c.says and c.asked_by and c.consequence for c in contract.clauses)


def test_the_six_usual_contracts_are_shipped() -> None:
    assert set(shipped()) == {"unit", "retained", "gate", "goodput", "fabric", "mfu"}


def test_the_example_contracts_pass_on_the_sample(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(map(str, EXAMPLES.glob("*.toml")))
    assert len(files) == 2
    assert main(["accept", "contract", "check", *files, str(sample), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [c["status"] for c in document["contracts"]] == ["PASS", "PASS"]
    assert main(["accept", "contract", "check", *shipped(), str(sample)]) == 10


@pytest.mark.parametrize("text", ["list", "show unit", "show goodput --toml"])
def test_contracts_are_listed_and_shown(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "contract", *text.split()]) == 0
    assert "scale" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "requires nothing"),
        (CLAUSE, "a rule needs a bound"),
        (CLAUSE + "at_least = 0.5\nper = 'rack'", "no [[unit]] is of the kind 'rack'"),
        (CLAUSE + "of_accepted = 90", "is not a share"),
        (CLAUSE + "of_accepted = 0.9\nat_least = 0.5", "the accepted record gives the bound"),
        (CLAUSE + "at_least = 0.5\npairs = -1", "pairs is below zero"),
        (2 * (CLAUSE + "at_least = 0.5\n"), "has the name 'scales', too"),
        (CLAUSE + "at_least = 0.5\nsays_ = 1", "unknown key 'says_'"),
        ("[contract]\nbuyers = 'x'\n" + CLAUSE + "at_least = 0.5", "unknown key 'buyers'"),
        ("[[unit]]\nof = 'node'\nname = 'a'\nnodes = 'a'\n" + CLAUSE + "at_least = 0.5", "no list"),
        (CLAUSE + "at_least = 0.5\nwords = 1\n[[claus]]", "unknown top-level key 'claus'"),
    ],
)
def test_mistakes_in_a_contract_are_reported(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ScaleproofError, match=".") as raised:
        written(tmp_path, text)
    assert complaint in str(raised.value)


def on_hosts(run: RunRecord, hosts: tuple[str, ...]) -> RunRecord:
    """Return the run as if its timed launches had alternated between these nodes."""
    nodes = tuple(replace(run.machine, host=host) for host in hosts)
    launches = []
    for launch in run.launches:
        number = launch.turn % len(hosts) if launch.purpose is Purpose.TIMED else 0
        ranks = tuple(replace(rank, host=hosts[number]) for rank in launch.ranks)
        launches.append(replace(launch, ranks=ranks, hosts=(number,)))
    return replace(run, nodes=nodes, launches=tuple(launches))


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip verification, because a run that a test has changed would not verify."""
    agrees = type("V", (), {"differences": ()})
    monkeypatch.setattr("harness.features.acceptance.handover.verify", lambda *a: agrees)


@pytest.mark.usefixtures("unsealed")
def test_every_node_is_judged_by_launches_on_that_node(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    contract = written(tmp_path, CLAUSE + "at_least = 0.2\nper = 'node'")
    run = on_hosts(sample_run, ("n1", "n2"))
    (only,) = handover([(run, sample)], TODAY, contract).requirements
    assert {e.unit: e.result.n for e in only.evidence} == {"n1": 2, "n2": 2}
    whole = clauses.judged(written(tmp_path, CLAUSE + "at_least = 0.2"), [run], [])["scales"]
    assert [e.result.n for e in whole] == [4], "without units all four pairs must count"
    assert only.status is Status.INCONCLUSIVE, "two pairs per node are too few"


@pytest.mark.usefixtures("unsealed")
def test_one_unmeasured_unit_prevents_a_pass(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    units = "".join(
        f"[[unit]]\nof = 'rack'\nname = 'r{i}'\nnodes = ['{host}']\n"
        for i, host in enumerate(("n1*", "n2*"))
    )
    clause = CLAUSE + "at_least = 0.2\nper = 'rack'\n"
    changed = replace(sample_run, machine=replace(sample_run.machine, host="n1-7"))
    two = replace(sample_run, machine=replace(sample_run.machine, host="n2-1"), run="other")
    contract = written(tmp_path, clause + units)
    (lacking,) = handover([(changed, sample)], TODAY, contract).requirements
    assert (lacking.status, lacking.unmeasured) == (Status.INCONCLUSIVE, ("r1",))
    (full,) = handover([(changed, sample), (two, sample)], TODAY, contract).requirements
    assert (full.status, full.unmeasured) == (Status.PASS, ())
    assert [e.unit for e in full.evidence] == ["r0", "r1"]


@pytest.mark.usefixtures("unsealed")
def test_nodes_that_no_run_measured_are_reported(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    text = "[contract]\nnodes = 3\n" + CLAUSE + "at_least = 0.2\nper = 'node'"
    (only,) = handover([(sample_run, sample)], TODAY, written(tmp_path, text)).requirements
    assert only.status is Status.INCONCLUSIVE
    assert only.unmeasured == ("2 nodes that no run names",)


@pytest.mark.usefixtures("unsealed")
def test_a_launch_on_two_units_counts_for_neither(sample_run: RunRecord) -> None:
    run = on_hosts(sample_run, ("n1",))
    launches = [
        replace(x, ranks=(x.ranks[0], *(replace(r, host="n2") for r in x.ranks[1:])))
        for x in run.launches
    ]
    nodes = (run.nodes[0], replace(run.nodes[0], host="n2"))
    split = replace(run, launches=tuple(launches), nodes=nodes)
    inside = clauses.within(split, clauses.MachinePart(name="n1", hosts=frozenset({"n1"})))
    assert inside is not None
    timed = [x for x in inside.launches if x.purpose is Purpose.TIMED]
    assert timed
    assert all(len(x.ranks) == 1 for x in timed)


def faster(run: RunRecord, factor: float) -> RunRecord:
    """Return the run with every step faster by this factor."""
    launches = []
    for launch in run.launches:
        ranks = tuple(replace(rank, window_s=rank.window_s / factor) for rank in launch.ranks)
        launches.append(replace(launch, ranks=ranks))
    return replace(run, launches=tuple(launches))


def steady(run: RunRecord, spread: float) -> RunRecord:
    """Return the run with launches that alternate by this spread and differ in nothing else."""
    launches = []
    for launch in run.launches:
        odd = 1 + spread * (-1) ** launch.turn
        ranks = tuple(
            replace(
                rank, window_s=odd * len(launch.ranks) ** 0.2, waited_s=None, throttled_s=None,
                busy_s=None,
            )
            for rank in launch.ranks
        )  # fmt: skip
        launches.append(replace(launch, ranks=ranks, foreign_load=0.0, consumed=len(ranks) * 100))
    return replace(run, launches=tuple(launches))


THROUGHPUT = CLAUSE.replace('metric = "efficiency"\n', 'metric = "throughput"\n').replace(
    'baseline = "plain"\n', 'unit = "samples/s"\n'
)


@pytest.mark.usefixtures("unsealed")
@pytest.mark.parametrize(
    ("factor", "status"),
    [(1.0, Status.PASS), (0.93, Status.INCONCLUSIVE), (0.9, Status.INCONCLUSIVE)],
)
def test_the_accepted_record_gives_the_bound(
    factor: float, status: Status, sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    contract = written(tmp_path, THROUGHPUT + "of_accepted = 0.9")
    then = steady(sample_run, 0.005)
    now = faster(then, factor)
    assert word(contract, now, sample, [(then, sample)]) is status


@pytest.mark.usefixtures("unsealed")
def test_a_missed_share_of_the_accepted_value_does_not_pass(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    """The value is 0.7 of the accepted one, the bound 0.9; without a second set of launches the
    FAIL is unconfirmed.
    """
    contract = written(tmp_path, THROUGHPUT + "of_accepted = 0.9")
    then = steady(sample_run, 0.005)
    (evidence,) = clauses.judged(contract, [faster(then, 0.7)], [then])["scales"]
    assert evidence.result.status is Status.INCONCLUSIVE
    assert "no fresh set of launches has confirmed the FAIL" in evidence.result.detail


@pytest.mark.usefixtures("unsealed")
def test_a_missing_or_foreign_accepted_record_prevents_a_pass(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    contract = written(tmp_path, THROUGHPUT + "of_accepted = 0.9")
    run = steady(sample_run, 0.005)
    other = replace(run, machine=replace(run.machine, cpu="another one"))
    fewer = replace(run, plans=run.plans, launches=())
    assert word(contract, run, sample, [(run, sample)]) is Status.PASS, "the valid record must pass"
    for accepted in ([], [(other, sample)], [(fewer, sample)]):
        assert word(contract, run, sample, accepted) is not Status.PASS


@pytest.mark.usefixtures("unsealed")
def test_fewer_pairs_or_hours_than_required_decide_nothing(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    for sampling, status in (("pairs = 4", Status.PASS), ("pairs = 5", Status.INCONCLUSIVE),
                             ("hours = 24", Status.INCONCLUSIVE)):  # fmt: skip
        contract = written(tmp_path, CLAUSE + f"at_least = 0.2\n{sampling}")
        assert word(contract, sample_run, sample) is status


def test_simulated_training_is_no_evidence_of_goodput(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    """The same is true for more ranks than cores; these played trainings are in no plan that other
    checks inspect.
    """
    contract = load_contract(shipped()["goodput"])
    marks = tuple((Mark.STEP, n, n * 10**9) for n in range(1, 5))
    sitting = TrainingAttempt(began_ns=0, marks=((Mark.READY, 0, 1), *marks))
    for case, world, apart in (
        ("ddp/decoder-nano/weak@2cpu", 2, False),
        ("ddp/paced-small/weak@2cpu", 2, True),
        ("ddp/decoder-nano/weak@64cpu", 64, True),
        ("ddp/forgotten-nano/weak@2cpu", 2, True),
    ):
        play = FaultedTraining(
            case=case, world_size=world, steps=4, every=2, mtbf_s=9.0, seed=0, sittings=(sitting,)
        )
        evidence = clauses.judged(contract, [replace(sample_run, played=(play,) * 4)], [])
        assert {e.apart for name in evidence for e in evidence[name]} == {apart}, case


def test_a_nonce_with_the_contracts_mark_shows_that_it_existed_before(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    contract = written(tmp_path, CLAUSE + "at_least = 0.2")
    asked = replace(sample_run, settings=replace(sample_run.settings, nonce=contract.mark))
    for run, late in ((sample_run, True), (asked, False)):
        (only,) = handover([(run, sample)], TODAY, contract).requirements
        assert only.late is late


def test_an_unknown_contract_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "contract", "show", "goodputt"]) == 4
    assert "goodput" in capsys.readouterr().err
    assert main(["accept", "contract", "check", "gate"]) == 4
    assert "1 contracts and 0 runs" in capsys.readouterr().err


def test_the_clause_on_p2p_matches_the_plan_of_its_example() -> None:
    """The clause of ``fabric`` matches the ratio that examples/acceptance/p2p.py plans on GPUs."""
    path = EXAMPLES.parent / "acceptance" / "p2p.py"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("p2p", path))
    module.__loader__.exec_module(module)
    (plan,) = module.beside(Site(device=Device.CUDA, backend="nccl", nodes=(8,)))
    (contrast,) = plan.contrasts
    contract = load_contract(shipped()["fabric"])
    clause = next(c for c in contract.clauses if c.name == "network_alone")
    arms = {arm.name: arm.case for arm in plan.arms}
    assert clause.rule.matches(arms[contrast.subject], contrast, detect())
    assert not clause.rule.matches(arms["a"], contrast, detect())
    assert "p2p.py" in clause.by


def test_a_clause_that_no_run_can_measure_is_skipped_with_its_reason(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept", "contract", "check", "fabric", str(sample)]) == 10
    text = " ".join(capsys.readouterr().out.split())
    assert "SKIP network_alone" in text
    assert "the clause is for cuda, but these runs used cpu; measure it: pytest" in text


@pytest.mark.full
def test_the_p2p_example_is_judged_on_two_cpu_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the complete example without NCCL: on CPU ranks, with a variable that gloo ignores."""
    text = (EXAMPLES.parent / "acceptance" / "p2p.py").read_text()
    text = text.replace("decoder-350m", "decoder-nano").replace("NCCL_P2P", "GLOO_P2P")
    (tmp_path / "test_p2p.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "test_p2p.py", "--cpus", "2", "-q"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5, f"no rule judges it: {done.stdout}"
    (run,) = (tmp_path / "results" / "runs").glob("*/*")
    terms = shipped()["fabric"].read_text().replace('device = "cuda"\n', "")
    terms = terms.replace("NCCL_P2P", "GLOO_P2P")
    (tmp_path / "twin.toml").write_text(terms)
    assert (
        main(["accept", "contract", "check", str(tmp_path / "twin.toml"), str(run), "--json"]) == 10
    )
    (document,) = json.loads(capsys.readouterr().out)["contracts"]
    word = {r["clause"]["rule"]["name"]: r["status"] for r in document["requirements"]}
    assert word["network_alone"] == "RECORDED", "a provisional bound is only recorded"
