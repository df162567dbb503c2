"""The loader of thresholds reports all mistakes together, each with its line and a suggestion."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from harness.base.errors import ConfigError
from harness.cases import Catalogue, Contrast, Device, Mode, Reach, Site, Threshold
from harness.cases.metrics import METRICS
from harness.cases.rules import implied, load_thresholds, reach
from harness.host.machine import detect
from harness.interface.cli.main import main

HERE = detect()
ROOT = Path(__file__).parents[2]

GOOD = """
[[rule]]
name = "a"
case = "ddp/decoder-*/weak"
mode = "weak"
baseline = "plain"
world = 2
metric = "efficiency"
at_least = 0.85
unit = "1"
source = "requirement"
"""


def load(tmp_path: Path, text: str) -> object:
    file = tmp_path / "thresholds.toml"
    file.write_text(text)
    return load_thresholds(file, Catalogue())


def problems(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_all_mistakes_in_a_file_are_reported_together(tmp_path: Path) -> None:
    complaints = problems(
        tmp_path,
        GOOD.replace('"efficiency"', '"effciency"')
        + GOOD.replace('name = "a"', 'name = "b"')
        .replace("mode =", "mood =")
        .replace("0.85", '"0.85"')
        + "[[rules]]\nx = 1\n",
    )
    assert "4 problems" in complaints
    assert (
        'line 8: metric = "effciency"' in complaints and "did you mean 'efficiency'?" in complaints
    )
    assert "unknown key 'mood' in [[rule]]" in complaints and "did you mean 'mode'?" in complaints
    assert "expected a float, found the str '0.85'" in complaints
    assert "unknown top-level key 'rules'" in complaints and "did you mean 'rule'?" in complaints


def test_all_mistakes_in_one_rule_are_reported_together(tmp_path: Path) -> None:
    wrong = GOOD.replace('unit = "1"', 'unit = "W"').replace('baseline = "plain"\n', "")
    wrong = wrong.replace("at_least = 0.85\n", "").replace("world = 2", "world = 0")
    complaints = problems(tmp_path, wrong + 'waiver = "known"\n')
    assert "5 problems" in complaints, complaints


@pytest.mark.parametrize(
    ("metric", "bound", "unit", "says"),
    [
        ("flops_per_s", "at_least = 100", "TFLOP/s", "at_least = 1e+14, "),
        ("peak_bytes", "at_most = 16", "GiB", 'at_most = 17179869184, unit = "B"'),
        ("step_s", "at_most = 20", "ms", 'at_most = 0.02, unit = "s"'),
        ("mfu", "at_least = 1.2", "1", "no possible mfu passes"),
    ],
)
def test_a_bound_in_another_unit_is_converted_in_the_fix(
    tmp_path: Path, metric: str, bound: str, unit: str, says: str
) -> None:
    rule = f'name = "a"\ncase = "ddp/*"\nmetric = "{metric}"\n{bound}\nunit = "{unit}"\n'
    assert says in problems(tmp_path, f'[[rule]]\n{rule}source = "requirement"\n')


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('mode = "weak"\n', "", "efficiency needs a mode"),
        ('baseline = "plain"\n', "", "efficiency needs a baseline"),
        ('unit = "1"', 'unit = "x"', "efficiency is in '1', not 'x'"),
        ('unit = "1"', 'unit = "%"', 'at_least = 0.0085, unit = "1"'),
        ('metric = "efficiency"', 'metric = "Efficiency"', "did you mean 'efficiency'?"),
        ("at_least = 0.85\n", "", "a rule needs a bound"),
        ("at_least = 0.85", "at_least = 0.85\nat_most = 0.5", "at_least is above at_most"),
        ('source = "requirement"', 'source = "rumour"', "'rumour' is not allowed here"),
        ("world = 2", 'world = "2"', "expected a int, found the str '2'"),
        ("world = 2", "world = 0", "world = 0 matches no run"),
        ("world = 2", "fabric = []", "fabric = [] matches no machine"),
        ("world = 2", "gbit_s = nan", "gbit_s = nan is not a rate"),
        ("world = 2", "gbit_s = 0.0", "gbit_s = 0.0 is not a rate"),
        ("world = 2", "nodes = 1\ngbit_s = 200.0", "gbit_s needs a network"),
        ("world = 2", 'nodes = 1\nfabric = "efa"', "connects nothing inside a node"),
        ("world = 2", 'nodes = [2, 4]\nfabric = ["nvswitch"]', "connects nothing between nodes"),
        ("world = 2", 'waiver = "known"', "a waiver needs a reason and waiver_expires"),
        ('name = "a"\n', "", "missing required key 'name'"),
        ('name = "a"', 'name = ""', "a rule needs a name"),
        ("[[rule]]", "[[rule]", "not valid TOML"),
    ],
)
def test_each_mistake_names_what_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    complaints = problems(tmp_path, GOOD.replace(old, new, 1))
    assert says in complaints
    assert "line " in complaints and "thresholds.toml" in complaints and "try" in complaints


def test_rules_for_two_fabrics_do_not_contradict_each_other(tmp_path: Path) -> None:
    """A floor for NVSwitch and a ceiling for PCIe do not conflict, because no machine has both."""
    fast = GOOD.replace("world = 2", 'fabric = "nvswitch"')
    slow = fast.replace('name = "a"', 'name = "b"').replace("nvswitch", "pcie-host")
    path = tmp_path / "thresholds.toml"
    path.write_text(fast + slow.replace("at_least = 0.85", "at_most = 0.6"))
    assert {rule.fabric for rule in load_thresholds(path)} == {("nvswitch",), ("pcie-host",)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"at_least": "85"}, "no possible efficiency passes"),
        ({"at_least": "0.0"}, "every possible efficiency passes"),
        ({"at_least": "-1.0"}, "every possible efficiency passes"),
        ({"at_least": "-inf"}, "is not a bound"),
        ({"at_least": "nan"}, "is not a bound"),
        ({"at_most": "85.0"}, "every possible efficiency passes"),
        ({"at_most": "inf"}, "is not a bound"),
        ({"at_most": "0.0"}, "no possible efficiency passes"),
        ({"metric": '"comm_share"', "at_most": "1.5"}, "every possible comm_share passes"),
        ({"metric": '"memory_saved"', "at_least": "1.0"}, "no possible memory_saved passes"),
        ({"metric": '"caught"', "at_most": "0.0"}, "a control is either caught or not"),
        ({"case": '"dpp/decoder-*/weak"'}, "matches no existing strategy, model and mode"),
        ({"case": '"ddp/decoder-hugee/weak"'}, "matches no existing strategy, model and mode"),
        ({"case": '"ddp/decoder-tiny/week"'}, "matches no existing strategy, model and mode"),
    ],
)
def test_a_rule_that_judges_nothing_is_reported_with_its_line(
    tmp_path: Path, change: dict[str, str], says: str
) -> None:
    kept = {"case": '"ddp/decoder-*/weak"', "metric": '"efficiency"'}
    text = GOOD.replace("at_least = 0.85\n", "")
    for key, value in change.items():
        text = (
            text.replace(f"{key} = {kept[key]}", f"{key} = {value}")
            if key in kept
            else f"{text}{key} = {value}\n"
        )
    if not {"at_least", "at_most"} & change.keys():
        text += "at_least = 0.85\n"
    assert says in problems(tmp_path, text)


def test_contradicting_rules_are_reported(tmp_path: Path) -> None:
    other = GOOD.replace('name = "a"', 'name = "b"').replace("at_least = 0.85", "at_most = 0.8")
    assert "contradicts the rule at line 2" in problems(tmp_path, GOOD + other)
    elsewhere = other.replace("world = 2", "world = 4")
    load(tmp_path, GOOD + elsewhere)


def test_names_of_rules_must_be_unique(tmp_path: Path) -> None:
    assert "the rule at line 2 already has the name 'a'" in problems(tmp_path, GOOD + GOOD)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_thresholds(tmp_path / "none.toml")


def test_shipped_rules_load_and_claims_are_out_of_reach_on_cpu() -> None:
    rules = load_thresholds(ROOT / "suites" / "thresholds.toml", Catalogue())
    assert len(rules) > 20
    states = {r.name: reach(r, [], HERE, Device.CPU, max_world=2, max_nodes=1) for r in rules}
    claims = [n for n in states if n.startswith("claim_")]
    assert len(claims) >= 10
    assert {states[n][0] for n in claims} == {Reach.OUT_OF_REACH}
    assert states["claim_recovery"][1] == "need scaleproof faults recover"
    assert states["cpu_ddp_weak"][0] is Reach.UNMATCHED
    assert states["paced_ddp_8"] == (Reach.OUT_OF_REACH, "need 8 ranks")


def test_a_rule_matches_its_case_world_and_baseline_only(tmp_path: Path) -> None:
    (rule,) = load(tmp_path, GOOD)  # type: ignore[misc]
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    case = site.case("ddp/decoder-tiny", Mode.WEAK)
    plain = Contrast(name="c", metric="efficiency", subject="s", baseline=("b",), against="plain")
    assert rule.matches(case, plain, HERE)
    assert not rule.matches(case.at(4), plain, HERE)
    assert not rule.matches(site.case("fsdp/decoder-tiny"), plain, HERE)
    assert not rule.matches(
        site.case("ddp/decoder-tiny", Mode.STRONG, global_batch=8), plain, "any"
    )
    wrapped = Contrast(
        name="c", metric="efficiency", subject="s", baseline=("b",), against="wrapped"
    )
    assert not rule.matches(case, wrapped, HERE)


def test_waivers_expire(tmp_path: Path) -> None:
    text = GOOD + 'waiver = "broken switch"\nwaiver_expires = 2026-12-31\n'
    (rule,) = load(tmp_path, text)  # type: ignore[misc]
    assert rule.waived(datetime.date(2026, 12, 31))
    assert not rule.waived(datetime.date(2027, 1, 1))


@pytest.mark.parametrize("key", ["case", "name"])
def test_a_blank_at_an_end_is_a_mistake(tmp_path: Path, key: str) -> None:
    """Such a rule would load and look like a requirement, but never apply."""
    value = {"case": "ddp/decoder-*/weak", "name": "a"}[key]
    complaints = problems(tmp_path, GOOD.replace(f'{key} = "{value}"', f'{key} = "{value} "'))
    assert (
        f"{key} = '{value} ' has a blank at its end" in complaints
        and f"{key} = '{value}'" in complaints
    )


@pytest.mark.parametrize(
    ("first", "second", "idle"),
    [
        ("", 'metric = "efficiency"\nat_least = 0.8\nunit = "1"', ["b"]),
        ("", 'metric = "efficiency"\nat_least = 0.85\nunit = "1"', ["b"]),
        ("", 'metric = "efficiency"\nat_least = 0.9\nunit = "1"', ["a"]),
        ("", 'metric = "speedup"\nat_least = 1.6\nunit = "x"', ["b"]),
        ("", 'metric = "speedup"\nat_least = 1.8\nunit = "x"', ["a"]),
        ("world = 2\n", 'metric = "efficiency"\nat_least = 0.8\nunit = "1"', []),
    ],
)
def test_a_rule_that_cannot_fail_beside_another_is_told(
    tmp_path: Path, first: str, second: str, idle: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """At two ranks, a speedup of 1.8 is an efficiency of 0.9."""
    other = GOOD.replace('name = "a"', 'name = "b"')
    other = other.replace('metric = "efficiency"\nat_least = 0.85\nunit = "1"', second)
    rules = load_thresholds_of(tmp_path, GOOD.replace(first, "") + other if first else GOOD + other)
    assert [rule.name for rule, _ in implied(rules)] == idle
    assert main(["check", "thresholds", str(tmp_path / "rules.toml")]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    for rule in rules:
        assert (f"{rule.name} cannot fail if" in screen) is (rule.name in idle)


def load_thresholds_of(tmp_path: Path, text: str) -> tuple[Threshold, ...]:
    (tmp_path / "rules.toml").write_text(text)
    return load_thresholds(tmp_path / "rules.toml")


def test_a_ratio_needs_no_unit_and_an_absolute_bound_does(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(GOOD.replace('unit = "1"\n', ""))
    assert [rule.unit for rule in load_thresholds(file)] == ["1"]
    bytes_ = GOOD.replace('unit = "1"\n', "").replace('"efficiency"', '"peak_bytes"')
    file.write_text(bytes_)
    with pytest.raises(ConfigError) as caught:
        load_thresholds(file)
    assert "a bound on peak_bytes needs its unit" in str(caught.value)
    assert 'unit = "B"' in str(caught.value)


@pytest.mark.parametrize(
    ("metric", "bound", "refused"),
    [
        ("comm_share", "at_most = 1.2", True),
        ("goodput", "at_least = 1.1", True),
        ("stage_imbalance", "at_most = 1.2", False),
        ("tokens_per_s", "at_least = 1e6", False),
    ],
)
def test_only_metrics_that_are_shares_are_limited_to_one(
    tmp_path: Path, metric: str, bound: str, refused: bool
) -> None:
    unit = METRICS[metric].unit
    (file := tmp_path / "thresholds.toml").write_text(
        f"""[[rule]]
name = "a"
source = "requirement"
case = "pipeline/*"
metric = "{metric}"
unit = "{unit}"
{bound}
"""
    )
    if not refused:
        assert load_thresholds(file)[0].metric == metric
        return
    with pytest.raises(ConfigError, match="(every|no) possible"):
        load_thresholds(file)


def test_every_metric_has_a_definition() -> None:
    assert [name for name, metric in METRICS.items() if not metric.means] == []
