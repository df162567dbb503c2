"""The pytest plugin as users run it: real suites, real launches, real exit status."""

from __future__ import annotations

import json
import sys
import textwrap
import xml.etree.ElementTree as ET
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from harness import cases
from harness.base import programs
from harness.base.errors import Exit

SUITE = """
    from harness import Protocol, Site, control, ladder, scaling

    FAST = Protocol(steps=6, cut=2, min_blocks=2, max_blocks=2)

    def weak(site):
        return [ladder(site.case("ddp/mlp-nano"), (1, 2), protocol=FAST)]

    def other(site):
        return [ladder(site.case("fsdp/mlp-nano"), (1, 2), protocol=FAST, baselines=("wrapped",))]

    @scaling(weak)
    def test_weak(verdict):
        assert verdict.n > 0

    @scaling(other)
    def test_other(verdict):
        pass
"""
#: A suite with one block per plan, for tests that need no decision.
SHORT = SUITE.replace("min_blocks=2, max_blocks=2", "min_blocks=1, max_blocks=1")
#: A rule on bytes, which do not depend on the load of the machine, because these tests concern the
#: plugin.
RULE = """
[[rule]]
name = "two"
case = "ddp/mlp-nano/weak"
world = 2
metric = "sent_bytes"
{bound}
unit = "B"
source = "requirement"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def rules(pytester: pytest.Pytester, bound: str) -> None:
    (pytester.path / "thresholds.toml").write_text(RULE.format(bound=bound))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest("from harness.host import admission\nadmission.LOOKS = 1  # do not wait")
    # Importing the hypothesis plugin takes a second.
    lean = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    return pytester.runpytest_subprocess(*lean, "--cpus", "2", *arguments)


def test_assertions_of_this_package_are_not_rewritten() -> None:
    """The import of the package in pytest would take a second longer."""
    assert isinstance(cases.__loader__, SourceFileLoader)


def record(pytester: pytest.Pytester) -> dict[str, object]:
    (path,) = pytester.path.glob("results/runs/*/*/record.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_each_verdict_is_one_item_and_each_plan_is_measured_once(suite: pytest.Pytester) -> None:
    rules(suite, "at_least = 1.0")
    result = run(suite, "-v", "--junitxml=j.xml")
    result.stdout.fnmatch_lines(
        [
            "scaling: 2 plans, at least 20 launches*",
            "*test_weak?ddp-mlp_nano-weak-1cpu-efficiency?*",
            "*?gate 1/2? single/mlp-nano/weak@1cpu*ETA *",
            "*?pilot 1/2? single/mlp-nano/weak@1cpu*ETA *",
            "*test_weak?ddp-mlp_nano-weak-2cpu-efficiency? RECORDED*",
            "*test_weak?ddp-mlp_nano-weak-2cpu-efficiency-wrapped? RECORDED*",
            "*test_weak?ddp-mlp_nano-weak-2cpu-sent_bytes? PASSED*",
            "*test_other?fsdp-mlp_nano-weak-2cpu-efficiency-wrapped? RECORDED*",
            "*value [[]95% limits[]]*verdict*",
            "* again *pytest*",
        ]
    )
    assert result.ret == 0
    launches = [x for x in record(suite)["launches"] if x["purpose"] == "timed"]  # type: ignore[attr-defined]
    assert len(launches) == 4 * 3 + 4 * 2, "each plan must be measured once for all its items"
    cases = ET.parse(suite.path / "j.xml").getroot().iter("testcase")
    properties = [{p.attrib["name"]: p.attrib["value"] for p in c.iter("property")} for c in cases]
    (judged,) = [f for f in properties if f.get("scaling_rule") == "two"]
    assert judged["scaling_status"] == "PASS" and judged["scaling_bound"] == ">=1 B"
    assert float(judged["scaling_low"]) <= float(judged["scaling_value"])
    assert judged["scaling_n"] == "4" and judged["scaling_report"].startswith("scaleproof report ")
    assert len([f for f in properties if "scaling_status" in f]) == len(properties)


@pytest.mark.parametrize(
    ("bound", "code", "word"),
    [
        ("at_least = 1.0", 0, "PASS"),
        ("at_most = 1.0", 1, "FAIL"),
    ],
)
@pytest.mark.full
def test_the_exit_status_follows_the_verdicts(
    suite: pytest.Pytester, bound: str, code: int, word: str
) -> None:
    """If one verdict is selected, only the arms that it needs are measured."""
    rules(suite, bound)
    result = run(suite, "-k", "test_weak and 2cpu and not wrapped")
    assert result.ret == code
    assert word in result.stdout.str()
    recorded = record(suite)
    assert [p["name"] for p in recorded["plans"]] == ["ddp/mlp-nano/weak"]  # type: ignore[attr-defined]
    assert {x["arm"] for x in recorded["launches"]} == {"plain", "@2"}  # type: ignore[attr-defined]


@pytest.mark.full
def test_without_rules_the_session_does_not_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SHORT)
    assert run(pytester, "-k", "test_other and 2cpu").ret == 5


@pytest.mark.full
def test_an_expected_failure_is_a_failure_in_junits_file(suite: pytest.Pytester) -> None:
    rules(suite, "at_most = 1.0")
    suite.makepyfile(
        test_suite=SUITE.replace(
            "@scaling(weak)", "@pytest.mark.xfail\n    @scaling(weak)"
        ).replace("from harness", "import pytest\n    from harness", 1)
    )
    result = run(suite, "-k", "test_weak and sent_bytes", "--junitxml=j.xml")
    assert result.ret == 1
    (found,) = ET.parse(suite.path / "j.xml").getroot()
    assert found.attrib["failures"] == "1" and found.attrib["skipped"] == "0"


def test_another_fixture_called_verdict_judges_nothing_and_is_refused(
    pytester: pytest.Pytester,
) -> None:
    own = "@pytest.fixture\n    def verdict():\n        return None\n\n    @scaling(weak)"
    text = SHORT.replace("@scaling(weak)", own).replace(
        "from harness", "import pytest\n    from harness", 1
    )
    pytester.makepyfile(test_suite=text)
    result = run(pytester)
    assert result.ret == Exit.USAGE
    assert "another fixture named verdict" in result.stderr.str() + result.stdout.str()


@pytest.mark.full
def test_the_test_body_may_add_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SHORT.replace("assert verdict.n > 0", "assert verdict.n > 99"))
    rules(pytester, "at_least = 1.0")
    result = run(pytester, "-k", "test_weak and 2cpu and not wrapped")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*assert*99*"])


@pytest.mark.full
def test_inconclusive_is_a_junit_failure_unless_asked_otherwise(suite: pytest.Pytester) -> None:
    """The time budget ends before the first block, so nothing is decided on any machine."""
    rule = RULE.format(bound="at_least = 1.0").replace("ddp/", "fsdp/")
    (suite.path / "thresholds.toml").write_text(rule)
    select = ("-k", "test_other", "--time-budget", "1s")
    hard = run(suite, *select, "--junitxml=j.xml")
    assert hard.ret == 10
    assert ET.parse(suite.path / "j.xml").getroot().find(".//testcase/failure") is not None
    soft = run(suite, *select, "--scaling-inconclusive=warn")
    assert soft.ret == 5, "nothing failed and nothing passed"
    soft.stdout.fnmatch_lines(["*1 inconclusive*"])


@pytest.mark.full
def test_a_fail_is_measured_again_before_it_is_reported(suite: pytest.Pytester) -> None:
    rules(suite, "at_least = 1e12")
    result = run(suite, "-k", "sent_bytes")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*a FAIL is measured again*"])
    assert "confirmed: " in " ".join(result.stdout.str().split())
    launches = [x for x in record(suite)["launches"] if x["purpose"] == "timed"]  # type: ignore[attr-defined]
    assert [sum(x["attempt"] == a for x in launches) for a in (0, 1)] == [4, 4]


@pytest.mark.full
def test_a_time_budget_skips_whole_plans_and_reports_them(suite: pytest.Pytester) -> None:
    rules(suite, "at_least = 1.0")
    result = run(suite, "--time-budget", "1s")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*cut*by the time budget: ddp/mlp-nano/weak, fsdp/mlp-nano/weak*"])
    recorded = record(suite)
    assert not [x for x in recorded["launches"] if x["purpose"] == "timed"]  # type: ignore[attr-defined]
    assert {v["reason"] for v in recorded["verdicts"]} == {"out_of_time"}  # type: ignore[attr-defined]


@pytest.mark.full
def test_option_x_stops_between_plans(suite: pytest.Pytester) -> None:
    rules(suite, "at_least = 1e12")
    result = run(suite, "-x")
    assert result.ret == 1
    recorded = record(suite)
    assert len({x["plan"] for x in recorded["launches"]}) == 1  # type: ignore[attr-defined]
    assert not recorded["complete"], "the second plan must not have been measured"
    result.stdout.fnmatch_lines(["*scaleproof run --resume*"])


def test_option_collect_only_launches_nothing(suite: pytest.Pytester) -> None:
    result = run(suite, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*ddp-mlp_nano-weak-2cpu-efficiency*"])
    assert result.ret == 0
    assert not (suite.path / "results").exists()


@pytest.mark.full
def test_a_failing_case_is_one_error_and_the_others_continue(pytester: pytest.Pytester) -> None:
    (pytester.mkdir("mine") / "broken.py").write_text(
        '"""Raises on rank 1."""\nfrom harness import ddp\n'
        'SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)\nKNOBS = {}\n'
        "def expect(case, model, batching, facts, knobs):\n    return ddp.expect(case, model, batching, facts, ddp.KNOBS)\n"
        "def build(model, ctx, knobs):\n    if ctx.rank == 1:\n        raise RuntimeError('planted')\n    return ddp.build(model, ctx, ddp.KNOBS)\n"
    )
    pytester.makepyfile(test_suite=SHORT.replace("ddp/mlp-nano", "broken/mlp-nano"))
    result = run(pytester, "--path", "mine")
    assert result.ret == 11
    out = " ".join(result.stdout.str().split())
    assert "rank 1: RuntimeError: planted" in out
    assert "fsdp/mlp-nano/weak" in out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpus", "4"), "usable GPU"),
        (("--engine", "slrm"), "no such engine"),
        (("--nodes", "2"), "can start one node only"),
        (("--path", "nowhere"), "not a folder"),
    ],
)
def test_invalid_options_are_usage_errors_without_a_traceback(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if "--gpus" in arguments:
        result = suite.runpytest_subprocess(*arguments)
    else:
        result = run(suite, *arguments)
    text = result.stderr.str() + result.stdout.str()
    assert result.ret == 4, text
    assert says in text and "try" in text and "Traceback" not in text


def test_a_mistake_in_the_thresholds_is_a_usage_error(suite: pytest.Pytester) -> None:
    (suite.path / "thresholds.toml").write_text(RULE.format(bound="at_leest = 0.5"))
    result = run(suite)
    assert result.ret == 4
    assert "did you mean 'at_least'" in result.stdout.str()


def test_another_projects_gpus_option_is_not_changed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('--gpus', default='theirs')"
    )
    pytester.makepyfile("def test_theirs(request): assert request.config.option.gpus == '3'")
    assert pytester.runpytest_subprocess("--gpus", "3").ret == 0


def test_a_project_without_suites_is_not_affected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin changes neither its environment, its markers nor its imports."""
    monkeypatch.setenv("SCALEPROOF_GPUS", "8")
    pytester.makepyfile(
        "import sys\n"
        "def test_theirs(): assert 'harness.cases' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest")
    assert result.ret == 0
    assert "scaling" not in result.stdout.str().replace("scaleproof", "")
    pytester.makepyfile("import pytest\n@pytest.mark.smoke\ndef test_theirs(): pass\n")
    assert pytester.runpytest_subprocess("--strict-markers").ret == 2, (
        "the plugin must not disable strict markers"
    )


@pytest.mark.full
def test_launches_appear_in_pytest_benchmark(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-benchmark is disabled in a worker of xdist.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    rules(suite, "at_least = 1.0")
    result = run(suite, "-k", "test_weak", "--benchmark-json=b.json")
    assert result.ret == 0
    document = json.loads((suite.path / "b.json").read_text())["benchmarks"]
    timed = [x for x in record(suite)["launches"] if x["purpose"] == "timed"]  # type: ignore[attr-defined]
    launches = [x for x in timed if x["arm"] == "@2"]
    mine = next(b for b in document if b["extra_info"]["case"].endswith("@2cpu"))
    assert mine["stats"]["rounds"] == len(launches)
    assert sorted(mine["stats"]["data"]) == pytest.approx(
        sorted(x["steps"]["median_s"] for x in launches)
    )
    assert {b["group"] for b in document} == {"ddp/mlp-nano/weak"}


TARDY = """
from harness.training.models import mlp
from harness.training.models.mlp import batch, build, loss  # noqa: F401

SIZES = {"nano": dict(d=256, layers=4, classes=16, batch=32)}
flops = mlp.flops
"""


@pytest.mark.full
def test_pytest_benchmark_compares_two_sessions(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injected change is eight times the work, and options of pytest-benchmark detect exactly
    this.
    """
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (pytester.mkdir("mine") / "tardy.py").write_text(TARDY)
    weak = SHORT.replace("ddp/mlp-nano", "ddp/tardy-nano").partition("    def other")[0]
    tests = "    @scaling(weak)\n    def test_weak(verdict):\n        pass\n"
    pytester.makepyfile(test_suite=weak + tests)
    asked = ("--path", "mine", "-k", "1cpu and not wrapped")
    run(pytester, *asked, "--benchmark-save=before")
    (saved,) = pytester.path.glob(".benchmarks/*/0001_before.json")
    before = json.loads(saved.read_text())["benchmarks"]
    assert before
    bounds = ("--benchmark-compare=0001", "--benchmark-compare-fail=median:300%")
    again = run(pytester, *asked, *bounds)
    assert "Performance has regressed" not in again.stdout.str() + again.stderr.str()
    assert "0001_before" in again.stdout.str(), "both sessions must be in one table"
    file = pytester.path / "mine/tardy.py"
    file.write_text(file.read_text().replace("layers=4", "layers=32"))
    slower = run(pytester, *asked, *bounds)
    assert slower.ret != Exit.PASSED
    assert "Performance has regressed" in slower.stdout.str() + slower.stderr.str()


def test_nothing_to_save_for_pytest_benchmark_is_no_failure(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses this project's filter, which turns every warning into an error."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    suite.makeini("[pytest]\nfilterwarnings = error")
    result = run(suite, "-k", "nothing_like_that", "--benchmark-json=b.json")
    assert result.ret == Exit.NOTHING_JUDGED
    output = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in output and "INTERNALERROR" not in output, output
    assert json.loads((suite.path / "b.json").read_text())["benchmarks"] == []


@pytest.mark.full
def test_two_functions_with_one_recipe_are_measured_once(suite: pytest.Pytester) -> None:
    path = suite.path / "test_suite.py"
    path.write_text(path.read_text() + "\n@scaling(weak)\ndef test_same(verdict):\n    pass\n")
    rules(suite, "at_least = 1.0")
    run(suite, "-k", "(test_weak or test_same) and 2cpu and not wrapped")
    assert len([x for x in record(suite)["launches"] if x["purpose"] == "timed"]) == 8  # type: ignore[attr-defined]


@pytest.mark.full
def test_environment_variables_set_options(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEPROOF_RESULTS", str(suite.path / "elsewhere"))
    run(suite, "-k", "test_other")
    assert list(Path(suite.path / "elsewhere").glob("runs/*/*/record.json"))


@pytest.mark.full
def test_suites_in_two_folders_use_the_rules_of_their_folder(pytester: pytest.Pytester) -> None:
    for name, case in (("s1", "ddp/mlp-nano"), ("s2", "fsdp/mlp-nano")):
        folder = pytester.mkdir(name)
        text = SUITE.replace("ddp/mlp-nano", case) if name == "s2" else SUITE
        body = textwrap.dedent(text).split("@scaling(other)")[0]
        (folder / f"test_{name}.py").write_text(body)
        rule = RULE.replace("ddp/mlp-nano", case).replace('"two"', f'"{name}"')
        (folder / "thresholds.toml").write_text(rule.format(bound="at_least = 1.0"))
    result = run(pytester, "s1", "s2", "-k", "2cpu and not wrapped")
    assert result.ret == 0
    result.assert_outcomes(passed=2)


@pytest.mark.full
def test_a_strategy_that_fails_to_describe_a_case_is_an_error(pytester: pytest.Pytester) -> None:
    (pytester.mkdir("mine") / "brok.py").write_text(
        '"""Broken."""\nprint("noise")\nSUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="own")\n'
        "def expect(*_):\n    return undefined_name\ndef build(*_): ...\n"
    )
    pytester.makepyfile(test_suite=SUITE.replace("ddp/mlp-nano", "brok/mlp-nano"))
    result = run(pytester, "--path", "mine", "-k", "test_weak")
    assert result.ret == 11
    assert "NameError: name 'undefined_name' is not defined" in " ".join(
        result.stdout.str().split()
    )


@pytest.mark.full
def test_world_sizes_are_profiled_and_a_rule_on_a_share_gets_more_profiles(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable disables timelines in the other tests of this file."""
    monkeypatch.setenv("SCALEPROOF_NO_TIMELINE", "0")
    paced = SUITE.replace("ddp/mlp-nano", "ddp/paced-small").split("@scaling(other)")[0]
    pytester.makepyfile(test_suite=paced)
    rule = RULE.replace("ddp/mlp-nano", "ddp/paced-small").replace("sent_bytes", "comm_share")
    (pytester.path / "thresholds.toml").write_text(
        rule.replace('unit = "B"', 'unit = "1"').format(bound="at_most = 0.9")
    )
    run(pytester)
    (folder,) = pytester.path.glob("results/runs/*/*")
    every = pytester.run(sys.executable, "-m", "harness", "report", folder, "--every")
    every.stdout.fnmatch_lines(["*where the efficiency went*", "*timed 3 of 3 cases, profiled 3*"])
    recorded = record(pytester)
    profiled = [x for x in recorded["launches"] if x["purpose"] == "profile"]  # type: ignore[attr-defined]
    assert sorted(x["arm"] for x in profiled) == ["@1", *["@2"] * 4, "plain"]
    (share,) = [v for v in recorded["verdicts"] if v["rule"] == "two"]  # type: ignore[attr-defined]
    assert share["metric"] == "comm_share" and share["n"] == 4 and 0 < share["value"] < 0.9
    assert share["status"] in ("PASS", "INCONCLUSIVE"), (
        "the verdict is INCONCLUSIVE if the profiler slows the step"
    )


RECOVERY = """
    from harness import Fault, FaultScenario, recovering

    def crash(site):
        return [FaultScenario(case=site.case("ddp/mlp-nano"), fault=Fault.KILL)]

    @recovering(crash)
    def test_recovery(verdict):
        assert verdict.metric == "recovery_s"
"""
RECOVERY_RULE = """
[[rule]]
name = "back"
case = "ddp/*"
metric = "recovery_s"
at_most = {bound}
unit = "s"
source = "requirement"
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("bound", "status", "code"),
    [("30.0", "PASSED", 0), ("0.001", "FAILED", 1), (None, "SKIPPED", 5)],
)
def test_a_recovery_is_one_item_with_its_worst_verdict(
    pytester: pytest.Pytester, bound: str | None, status: str, code: int
) -> None:
    pytester.makepyfile(test_suite=RECOVERY)
    if bound is not None:
        (pytester.path / "thresholds.toml").write_text(RECOVERY_RULE.format(bound=bound))
    result = run(pytester, "-v")
    result.stdout.fnmatch_lines(["*test_recovery?ddp-mlp-nano-weak@2cpu-kill?*", f"{status}*"])
    assert result.ret == code


@pytest.mark.parametrize(
    ("text", "is_suite"),
    [
        ("from harness import scaling\n@scaling(f)\ndef test(verdict): ...", True),
        ("import harness as h\n@h.scaling(f)\ndef test(verdict): ...", True),
        ("from harness import scaling\ntest = scaling(f)(lambda verdict: None)", True),
        ("from common import scaling\n@scaling(f)\ndef test(verdict): ...", True),
        ("from harness import scaling as measured\n", False),
        ("scaling = " + "-" * 100_000 + "1", False),
        ("# from harness import scaling: @scaling\n", False),
        ("from mine import scaling\n@scaling('harness')\ndef test(): ...", False),
        ("from harness import scaling\n@scaling(f\n", False),
    ],
)
def test_a_suite_is_recognized_by_its_syntax(tmp_path: Path, text: str, is_suite: bool) -> None:
    (tmp_path / "test_x.py").write_text(text)
    assert programs.is_suite(tmp_path / "test_x.py") is is_suite


#: The shortest form of a suite, in which one line states the case and its bound.
SHORT_SUITE = """
    import harness as h
    from harness import Verdict, scaling

    PLANTED = {"paced.mode": "schedule", "paced.plant": "2:0.85"}

    @h.scaling("ddp/paced-small", knobs=PLANTED, efficiency={2: 0.8})
    def test_holds(verdict: Verdict) -> None:
        assert verdict.value < 0.9

    @scaling("ddp/paced-small", mode="strong", global_batch=64, speedup={2: 1.9}, baseline="wrapped")
    def test_strong(verdict):
        pass
"""


def test_a_case_with_a_bound_is_a_complete_suite(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("a") / "b" / "c" / "d"  # The folder is nested deeper than usual.
    folder.mkdir(parents=True)
    (folder / "test_short.py").write_text(textwrap.dedent(SHORT_SUITE))
    result = run(pytester, "--collect-only", "-q", "--cpus", "2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*test_holds[[]ddp-paced_small-weak-2cpu*-efficiency]",
            "*test_strong[[]ddp-paced_small-strong-2cpu*-speedup-wrapped]",
        ]
    )


def test_a_bound_applies_only_to_its_function(pytester: pytest.Pytester) -> None:
    """Check functions with the same case, and functions with the same name in two files."""
    text = """
        from harness import scaling

        @scaling("ddp/mlp-nano", efficiency=0.9)
        def test_fast(verdict): ...

        @scaling("ddp/mlp-nano", efficiency=0.5)
        def test_slow(verdict): ...
    """
    pytester.makepyfile(test_a=text, test_b=text.replace("0.9", "0.7"))
    result = run(pytester, "--collect-only", "-q", "--cpus", "2")
    items = [line for line in result.outlines if "::" in line]
    assert len(items) == 4 and len(set(items)) == 4, items


@pytest.mark.full
@pytest.mark.alone
def test_a_bound_in_a_suite_is_judged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_short="""
        from harness import scaling

        PLANTED = {"paced.mode": "schedule", "paced.plant": "2:0.85"}

        @scaling("ddp/paced-small", knobs=PLANTED, efficiency=0.8)
        def test_holds(verdict):
            assert verdict.value < 0.9

        @scaling("ddp/paced-small", knobs=PLANTED, seed=1, efficiency={2: 0.95})
        def test_misses(verdict):
            pass
        """
    )
    run(pytester, "--cpus", "2").assert_outcomes(passed=1, failed=1)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("@scaling(3)", "@scaling(3)"),
        ("@scaling", "@scaling without a case"),
        ("@scaling()", "@scaling without a case"),
        (
            "@scaling(lambda site: [], precision='bf16')",
            "@scaling: precision cannot be set for a recipe",
        ),
        ("@scaling('ddp')", "'ddp' is not a case"),
        ("@scaling('ddp/mlp-nano', efficiency=-1)", "every possible efficiency passes"),
        ("@scaling('ddp/mlp-nano', efficiency=float('nan'))", "efficiency=nan"),
        ("@scaling('ddp/mlp-nano', efficiency=90)", "no possible efficiency passes"),
        ("@scaling('ddp/mlp-nano', efficiency='0.9')", "efficiency='0.9'"),
        ("@scaling('ddp/mlp-nano', precison='bf16')", "precison"),
        ("@scaling('ddp/mlp-nano', mode='strng')", "no mode 'strng': did you mean 'strong'?"),
        ("@scaling('ddp/mlp-nano', mode='strong')", "strong mode needs a global batch"),
        ("@scaling('ddp/mlp-nano', baseline='plian')", "no baseline named 'plian'"),
    ],
)
def test_a_mistake_in_the_decorator_is_one_clear_error(
    pytester: pytest.Pytester, line: str, message: str
) -> None:
    pytester.makepyfile(f"from harness import scaling\n{line}\ndef test_x(verdict): ...\n")
    result = run(pytester, "--cpus", "2")
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == Exit.USAGE and message in text and "Traceback" not in text, text
    assert "\n  try " in text


def test_suites_in_parallel_are_a_usage_error(suite: pytest.Pytester) -> None:
    result = run(suite, "test_suite.py", "-n", "2")
    assert result.ret == 4
    result.stdout.fnmatch_lines(["*scaling suites cannot run in parallel*"])
