"""Every cheat that trains correctly when checked and incorrectly when timed is found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from harness.analysis.judging.blockers import gate_failure
from harness.analysis.judging.caveats import AFTER_PAUSE
from harness.analysis.samples import figures
from harness.cases import (
    Arm,
    Catalogue,
    Device,
    Plan,
    Precision,
    Protocol,
    Role,
    Settings,
    Site,
)
from harness.measure.measurer import moment
from harness.measure.order import Order
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Purpose
from harness.record.store import load_samples
from tests.contract.stand import Stand

CHEATS = Path(__file__).parents[1] / "cheats"
#: Cheats that train too little and are tested in CI: those nearest to the limits.
IN_CI = {("honest", "bf16"), ("stale", "autocast")}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    stand = Stand(tmp_path_factory.mktemp("cheats"), CHEATS)
    yield stand
    stand.bench.worlds.close()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("honest", []),
        ("unsynchronised", ["loss: step 7", "replicas:"]),
        ("local", ["loss: step 7", "replicas:", "bytes:"]),
        ("half", ["loss: step 6", "samples:"]),
        ("idle", ["loss: step 6", "samples:"]),
        ("leader", ["loss: step 7"]),
        ("cached", ["loss: step 6"]),
        ("bf16", ["loss: step 6"]),
    ],
)
def test_late_cheats_are_dated_to_the_step(stand: Stand, how: str, seen: list[str]) -> None:
    plan, described = stand.described("cheater/mlp-nano", knobs={"cheater.how": how})
    purposes = (Purpose.GATE, Purpose.REFERENCE, Purpose.TIMED)
    gate, _, timed = stand.launch(plan, described, *purposes)
    assert gate_failure(gate) is None, "the gate alone does not see them"
    for word in seen:
        assert any(w.startswith(word) for w in timed.wrong), timed.wrong
    assert bool(timed.wrong) == bool(seen)
    assert timed.compared == 16


@pytest.mark.few(2)
@pytest.mark.parametrize("asks", ["nothing", "function", "imported", "group", "variable"])
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_model_that_asks_how_large_the_world_is_does_not_pass_the_gate(
    stand: Stand, strategy: str, asks: str
) -> None:
    """Such a model could wait on one rank, which would make every larger world look good."""
    plan, described = stand.described(
        f"{strategy}/worldly-nano",
        ranks=1 if strategy == "single" else 2,
        knobs={"worldly.asks": asks},
    )
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    failure = gate_failure(gate) or ""
    assert failure.startswith("model.knows_no_world") is (asks != "nothing"), failure
    assert ("worldly.py:" in failure) is (asks != "nothing")


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.alone
def test_a_model_that_waits_must_declare_itself_as_simulated(stand: Stand) -> None:
    """A low CPU time shows waiting only if no other process uses the cores."""
    for name, waits in (("sleeper-nano", True), ("mlp-nano", False), ("paced-small", False)):
        plan, described = stand.described(f"single/{name}", ranks=1)
        _, _, timed = stand.launch(plan, described, Purpose.GATE, Purpose.REFERENCE, Purpose.TIMED)
        (rank,) = timed.ranks
        for busy_s, waited_s, seen in (
            (rank.cpu_s, None, waits),
            (rank.window_s, 0.0, waits),  # it never waited for a busy core
            (rank.window_s, rank.window_s, False),
            (rank.window_s, None, False),
        ):
            of_rank = replace(rank, busy_s=busy_s, waited_s=waited_s)
            assert bool([*figures._waits(plan.arms[0].case, [of_rank])]) is seen


def test_a_model_that_asks_late_is_seen_in_its_reference(stand: Stand) -> None:
    plan, described = stand.described("ddp/worldly-nano", knobs={"worldly.asks": "late"})
    (reference,) = stand.launch(plan, described, Purpose.REFERENCE)
    check = reference.ranks[0].checks[0]
    assert check.name == "model.knows_no_world" and not check.ok and "worldly.py:" in check.detail


@pytest.mark.parametrize(("data_seed", "seen"), [(0, False), (20_261_125, True)])
def test_what_is_trained_before_the_clock_is_of_other_samples(
    stand: Stand, data_seed: int, seen: bool
) -> None:
    """The order of samples depends on the run's name, which a case does not know."""
    plan, described = stand.described("ahead/mlp-nano")
    stand.bench.data_seed = data_seed
    try:
        _, timed = stand.launch(plan, described, Purpose.REFERENCE, Purpose.TIMED)
    finally:
        stand.bench.data_seed = 0
    assert any(w.startswith("loss: step 0") for w in timed.wrong) is seen, timed.wrong


def test_a_step_that_ends_after_its_window_is_no_step(stand: Stand) -> None:
    """The check and the losses are correct, but the window ends before the work does."""
    plan, described = stand.described("deferred/mlp-nano")
    with pytest.raises(AssertionError, match="returned a Later, not a torch.Tensor"):
        stand.launch(plan, described, Purpose.TIMED)


def test_a_loss_that_shows_no_update_is_no_reference(stand: Stand) -> None:
    """Such a reference could not reveal frozen weights."""
    plan, described = stand.described("ddp/shifted-nano")
    gate, reference = stand.launch(plan, described, Purpose.GATE, Purpose.REFERENCE)
    assert gate_failure(gate) is None, "the gate compares weights"
    failed = {c.name for rank in reference.ranks for c in rank.checks if not c.ok}
    assert failed == {"loss.shows_updates"}


@pytest.mark.full
def test_each_run_draws_an_order_of_samples_of_its_own(tmp_path: Path) -> None:
    """Two sessions draw different orders of samples."""
    known = Catalogue()
    case = known.normalise(
        Site(device=Device.CPU, backend="gloo", nodes=(1,)).case("single/mlp-nano")
    )
    arm = Arm(name="@", case=case, role=Role.SUBJECT)
    plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=Protocol(steps=4, cut=0))
    drawn = []
    for name in ("one", "other"):
        session = Session(known, Settings(), tmp_path / name, (), Progress())
        with session:
            session.describe([case])
            session.run.announce([plan])
            order = Order(plan=plan, arm=arm, purpose=Purpose.TIMED, window=plan.window)
            (timed,) = session.launch([order], moment(session, order, {}, []))
        (rank,) = timed.ranks
        drawn.append(load_samples(session.run.folder, timed.launch, rank).sample_ids.tolist())
    assert drawn[0] != drawn[1]


TOO_LITTLE = ["honest", "frozen", "half", "top", "stale", "slow", "forgetful", "lazy"]


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "precision"),
    [
        pytest.param(
            how,
            precision,
            marks=() if (how, precision) in IN_CI else pytest.mark.full,
        )
        for how in TOO_LITTLE
        for precision in ("bf16", "autocast")
    ],
)
def test_what_trains_too_little_in_16_bits_is_seen(stand: Stand, how: str, precision: str) -> None:
    """Its losses differ by less than a percent, but by more than different rounding explains."""
    plan, described = stand.described(
        "undertrained/mlp-small",
        ranks=3,
        steps=32,
        precision=Precision(precision),
        knobs={"undertrained.how": how},
    )
    purposes = (Purpose.GATE, Purpose.REFERENCE, Purpose.TIMED)
    gate, _, timed = stand.launch(plan, described, *purposes)
    assert gate_failure(gate) is None, "the gate alone does not see them"
    assert bool(timed.wrong) == (how != "honest"), timed.wrong
    assert all(w.startswith("loss: ") for w in timed.wrong)


@pytest.mark.parametrize(
    ("how", "ranks", "seen"),
    [
        ("silent", 2, "ranks_hear_each_other"),
        pytest.param("silent", 4, "ranks_hear_each_other", marks=pytest.mark.full),
        pytest.param("pairs", 4, "ranks_hear_each_other", marks=pytest.mark.full),
        pytest.param("asleep", 2, "progress", marks=pytest.mark.full),
    ],
)
def test_ranks_that_synchronise_rarely_must_still_exchange_and_learn(
    stand: Stand, how: str, ranks: int, seen: str
) -> None:
    """Their reference is the simulation in their own file, which has the same defect."""
    plan, described = stand.described("lonely/mlp-nano", ranks, knobs={"lonely.how": how})
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    failed = {check.name for check in gate.ranks[0].checks if not check.ok}
    assert gate_failure(gate) and seen in failed


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "ranks", "precision"),
    [
        ("ddp/moe-nano", 3, Precision.BF16),
        ("fsdp/moe-nano", 3, Precision.BF16),
        ("fsdp/moe-nano", 3, Precision.AUTOCAST),
        ("compressed:randomk/resnet-nano", 4, Precision.BF16),
    ],
)
def test_honest_training_with_different_rounding_is_not_called_wrong(
    stand: Stand, name: str, ranks: int, precision: Precision
) -> None:
    """Rounding may send a token to another expert, or round an update differently."""
    plan, described = stand.described(name, ranks, precision=precision)
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert gate_failure(gate) is None


@pytest.mark.parametrize(
    ("name", "ranks", "seed"),
    [
        ("tensor_parallel/mlp-nano", 2, 3),
        pytest.param("tensor_parallel/mlp-nano", 4, 3, marks=pytest.mark.full),
        pytest.param("table_parallel/dlrm-nano", 4, 5, marks=pytest.mark.full),
    ],
)
def test_an_honest_gradient_that_happens_to_be_short_is_not_called_wrong(
    stand: Stand, name: str, ranks: int, seed: int
) -> None:
    """Rounding errors weigh more then: of 905 correct launches three were ERRORs."""
    plan, described = stand.described(name, ranks, precision=Precision.BF16, seed=seed)
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert gate_failure(gate) is None
    beyond = [c for c in gate.ranks[0].checks if "other roundings" in c.detail]
    assert "sgd.step1_gradient_scale" in {c.name for c in beyond}


@pytest.mark.parametrize(("which", "seen"), [("time", False), ("window", True)])
def test_a_doctored_clock_shows_or_does_nothing(stand: Stand, which: str, seen: bool) -> None:
    """The window of simulated steps is long compared with the kernel's clock tick."""
    plan, described = stand.described("slow_clock/paced-small", knobs={"slow_clock.which": which})
    (timed,) = stand.launch(plan, described, Purpose.TIMED)
    assert any(w.startswith("clock: ") for w in timed.wrong) is seen, timed.wrong
    if not seen:
        assert timed.ranks[0].window_s > 14 * 0.04 * 0.99, "the true time"


def test_a_compressor_that_throws_everything_away_does_not_pass_the_gate(stand: Stand) -> None:
    """Its reference does the same, so the check requires progress."""
    plan, described = stand.described("compressed:nothing/mlp-nano")
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert "progress" in (gate_failure(gate) or "")


def test_a_codec_that_is_one_percent_short_is_not_unbiased(stand: Stand) -> None:
    plan, described = stand.described("compressed:short_qsgd/mlp-nano")
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert (gate_failure(gate) or "").startswith("codec.length")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("honest", ""),
        ("lazy", "the compressor's output was zero in the last 12 steps"),
        pytest.param("negated", "of an even share of rank 0's", marks=pytest.mark.full),
        pytest.param("leader", "of an even share of rank", marks=pytest.mark.full),
        ("absent", "of an even share of rank 2's"),
    ],
)
def test_a_codec_that_leaves_gradients_out_is_seen_by_its_shares(
    stand: Stand, how: str, seen: str
) -> None:
    """The reference uses the same compressor, so losses do not reveal it."""
    plan, described = stand.described(
        "compressed:selective/mlp-nano", ranks=3, steps=24, knobs={"selective.how": how}
    )
    purposes = (Purpose.GATE, Purpose.REFERENCE, Purpose.TIMED)
    gate, reference, timed = stand.launch(plan, described, *purposes)
    assert gate_failure(gate) is None and not timed.wrong, "neither sees it"
    checks = {check.name: check for check in reference.ranks[0].checks}
    check = checks["codec.shares"]
    assert check.ok is (how == "honest"), check
    deaf = how in ("lazy", "leader", "absent")
    assert checks["codec.hears_every_rank"].ok is not deaf
    assert how == "honest" or seen in check.detail, check


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_codec_that_gives_each_rank_some_parameters_is_no_mean(stand: Stand, ranks: int) -> None:
    """Over all parameters each rank has an even share, but not for single ones."""
    plan, described = stand.described("compressed:shared_out/mlp-nano", ranks)
    gate, reference = stand.launch(plan, described, Purpose.GATE, Purpose.REFERENCE)
    assert gate_failure(gate) is None, "the gate does not see it"
    checks = {check.name: check for check in reference.ranks[0].checks}
    assert checks["codec.hears_every_rank"].ok and not checks["codec.shares"].ok
    assert "in part" in checks["codec.shares"].detail


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "how", "seen"),
    [
        ("late_codec", "honest", ""),
        ("late_codec", "signs", "codec.exact"),
        pytest.param("forgetful", "", "codec.telescopes", marks=pytest.mark.full),
        ("leaders_topk", "", "codec.hears_every_rank"),
    ],
)
def test_a_codec_that_keeps_its_claims_for_twenty_calls_is_seen_in_its_reference(
    stand: Stand, name: str, how: str, seen: str
) -> None:
    knobs = {f"{name}.how": how} if how else {}
    plan, described = stand.described(f"compressed:{name}/mlp-nano", steps=24, knobs=knobs)
    gate, reference = stand.launch(plan, described, Purpose.GATE, Purpose.REFERENCE)
    assert gate_failure(gate) is None, "it is new in its gate"
    failed = {c.name for rank in reference.ranks for c in rank.checks if not c.ok}
    assert seen in failed if seen else not failed


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["honest", "biases", "drifts", "frozen", "layer", "uneven"])
def test_a_codec_that_ages_is_seen_in_its_reference(stand: Stand, how: str) -> None:
    """Its error stays within the bound, and the reference ages in the same way."""
    knobs = {"ageing.how": how}
    plan, described = stand.described("compressed:ageing/mlp-nano", steps=32, knobs=knobs)
    gate, reference = stand.launch(plan, described, Purpose.GATE, Purpose.REFERENCE)
    assert gate_failure(gate) is None, "it is new in its gate"
    failed = {c.name for rank in reference.ranks for c in rank.checks if not c.ok}
    assert failed == (set() if how == "honest" else {"codec.as_when_new"})


def test_a_codec_that_returns_the_previous_step_does_not_pass_its_gate(stand: Stand) -> None:
    plan, described = stand.described(
        "compressed:late_codec/mlp-nano", knobs={"late_codec.how": "stale"}
    )
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert (gate_failure(gate) or "").startswith("codec.exact")


def test_what_came_another_way_than_the_stated_bytes_does_not_pass_the_gate(stand: Stand) -> None:
    """No socket, write or memory mapping reveals it; the amount of delivered data does."""
    plan, described = stand.described("compressed:vmread/mlp-nano")
    (gate,) = stand.launch(plan, described, Purpose.GATE)
    assert (gate_failure(gate) or "").startswith("codec.bytes_suffice")


@pytest.mark.few(2)
@pytest.mark.parametrize("through", ["memory", "file", "socket", "short"])
def test_bytes_past_the_sockets_are_seen(stand: Stand, through: str) -> None:
    plan, described = stand.described(
        "compressed:beside/mlp-small", knobs={"beside.through": through}
    )
    (timed,) = stand.launch(plan, described, Purpose.TIMED)
    for left in Path(tempfile.gettempdir()).glob("scaleproof-beside-*"):
        left.unlink()
    word = "past its sockets" if through == "file" else "that nothing counts"
    assert any(word in w for w in timed.wrong), timed.wrong


@pytest.mark.full
def test_an_input_that_hands_out_one_batch_again_and_again_is_seen(stand: Stand) -> None:
    """Its reference trains on the same samples, but the model's file makes others."""
    plan, described = stand.described("ddp/mlp-nano", data="late_input", steps=24)
    _, gate, timed = stand.launch(plan, described, Purpose.REFERENCE, Purpose.GATE, Purpose.TIMED)
    assert gate_failure(gate) is None
    assert any(w.startswith("samples:") for w in timed.wrong), timed.wrong


@pytest.mark.alone
@pytest.mark.parametrize("how", ["honest", "skips", "keeps a schedule"])
def test_what_a_model_does_late_is_seen_after_the_window(stand: Stand, how: str) -> None:
    """A layer is left out after twelve passes, or a wait takes up the time between passes."""
    plan, described = stand.described("ddp/late_model-nano", knobs={"late_model.how": how})
    gate, timed = stand.launch(plan, described, Purpose.GATE, Purpose.TIMED)
    assert gate_failure(gate) is None and not timed.wrong
    (probe, *_) = [rank.probe for rank in timed.ranks]
    assert (probe.flops < 0.9 * gate.ranks[0].probe.flops) is (how == "skips")
    times = (
        3 if how == "keeps a schedule" else 0
    )  # other programs can delay the steps after a pause
    more = [launch for _ in range(times) for launch in stand.launch(plan, described, Purpose.TIMED)]
    probes = [launch.ranks[0].probe for launch in (timed, *more)]
    after_a_pause = min(median(probe.paused_s) / min(probe.steps_s) for probe in probes)
    assert (after_a_pause < AFTER_PAUSE) is (how == "keeps a schedule")


def test_a_model_that_overstates_its_flops_or_tokens_is_an_error(stand: Stand) -> None:
    _, described = stand.described("ddp/boastful-nano")
    assert "flops() states" in described.error
    _, described = stand.described("ddp/wordy-nano")
    assert "tokens() states" in described.error


@pytest.mark.full
def test_no_shipped_model_overstates_anything(stand: Stand) -> None:
    """A sample may be a single vector, such as DiT's latent with its time and class."""
    errors: dict[str, str] = {}
    for name, entry in Catalogue().entries["models"].items():
        sizes = entry.head["SIZES"]
        if entry.shipped and isinstance(sizes, dict):
            _, described = stand.described(f"ddp/{name}-{next(iter(sizes))}")
            errors |= {name: described.error} if described.error else {}
    assert errors == {}


def test_a_compressor_that_states_nothing_is_an_error(stand: Stand, tmp_path: Path) -> None:
    """Sending nothing has an error of 100 %, so the file must state another property."""
    text = (CHEATS / "nothing.py").read_text().replace("LOSSLESS", "_NOT")
    (tmp_path / "vague.py").write_text(text)
    stand.known, known = Catalogue([CHEATS, tmp_path]), stand.known
    stand.bench.catalogue = stand.known
    try:
        _, described = stand.described("compressed:vague/mlp-nano")
    finally:
        stand.known = stand.bench.catalogue = known
    assert "ERROR_BOUND" in described.error


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("claims", "excuses"),
    [
        ("repeatable", ("repeatable=False",)),
        ("casts", ("casts=True",)),
        ("reorders", ("reorders=True",)),
        ("ideal", ()),
        ("nothing", ()),
    ],
)
def test_what_a_users_strategy_claims_of_itself_is_told(
    stand: Stand, claims: str, excuses: tuple[str, ...]
) -> None:
    """Such a case can be measured, but no verdict on it is a PASS."""
    _, described = stand.described("excused/mlp-nano", knobs={"excused.claims": claims})
    assert described.excuses == excuses and described.own_ideal is (claims == "ideal")


@pytest.mark.parametrize(
    ("forges", "excuses"),
    [
        ("excuse", ("repeatable=False",)),
        ("limit", ("another reference",)),
        ("facts", ("another model",)),
        ("memory", ("a larger reference",)),
    ],
)
def test_a_file_that_writes_its_own_description_is_excused_from_nothing(
    stand: Stand, forges: str, excuses: tuple[str, ...]
) -> None:
    """The excuses are derived from its expectations, in another process."""
    _, described = stand.described("forger/mlp-nano", knobs={"forger.forges": forges})
    assert described.excuses == excuses and described.own_ideal is (forges == "excuse")
    assert described.theirs == ("strategies",)


def test_a_file_that_states_no_expectations_is_an_error(stand: Stand) -> None:
    _, described = stand.described("forger/mlp-nano", knobs={"forger.forges": "silence"})
    assert "state no expectations" in described.error


def test_a_gate_at_other_settings_is_an_excuse(stand: Stand) -> None:
    _, described = stand.described("mute/mlp-nano")
    assert described.excuses == ("TWIN",)
    _, loud = stand.described("mute/mlp-nano", knobs={"mute.mute": 0})
    assert loud.excuses == ()


@pytest.mark.parametrize("name", ["two_headed", "sly"])
def test_a_head_that_is_another_one_when_it_is_imported_is_refused(stand: Stand, name: str) -> None:
    _, described = stand.described(f"{name}/mlp-nano")
    assert f"{name}.py: SUPPORTS is {{'worlds': 'any'" in described.error
    assert "in the file, but" in described.error


def test_a_shipped_strategy_states_facts(stand: Stand) -> None:
    _, described = stand.described(
        "parameter_server/mlp-nano", knobs={"parameter_server.bounded": False}
    )
    assert described.expected is not None and not described.expected.repeatable
    assert described.excuses == ()
