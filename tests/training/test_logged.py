"""A metric that a training logs is judged by thresholds, over its timed window."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import log_metric
from harness.analysis.verify import rejudge
from harness.base.errors import ConfigError, SpecError
from harness.cases import BoundSource, Catalogue, Threshold, metrics
from harness.cases.rules import load_thresholds
from harness.interface.cli.main import main
from harness.record import SCHEMA, Status
from harness.record.store import load
from harness.training.observe import logged

RULE = """
[[rule]]
name = "learns"
case = "*"
metric = "{metric}"
at_least = 0.05
unit = "percent"
source = "requirement"
"""
SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel

from harness import log_metric
from harness.analysis.verify import rejudge

torch.distributed.init_process_group("gloo")
torch.manual_seed(torch.distributed.get_rank())
model = DistributedDataParallel(torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log_metric("answer", 42)
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    logged._values.clear()
    yield
    logged._values.clear()


def test_the_mean_is_that_of_the_window_and_no_value_is_hidden() -> None:
    log_metric("loss", 100.0)
    begin = time.time_ns()
    for value in (1.0, 3.0):
        log_metric("loss", value)
    for value in (1.0, math.nan, 3.0):
        log_metric("broken", value)
    end = time.time_ns()
    log_metric("loss", 100.0)
    log_metric("late", 1.0)
    assert logged.means((begin, end)) == {"broken": None, "loss": 2.0}


@pytest.mark.parametrize("name", ["", "a.b", "a b", "1st", "x" * 65, "ä"])
def test_a_name_that_no_threshold_could_use_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="cannot be a metric"):
        log_metric(name, 1.0)


def test_the_number_of_metrics_is_bounded() -> None:
    for i in range(logged.MOST):
        log_metric(f"m{i}", 1.0)
    log_metric("m0", 2.0)
    with pytest.raises(SpecError):
        log_metric("one_more", 1.0)


def test_a_launch_has_the_mean_of_the_ranks_that_logged_it(sample_run: Any) -> None:
    launch = next(launch for launch in sample_run.launches if len(launch.ranks) == 2)
    first, second = launch.ranks
    launch = replace(
        launch, ranks=(replace(first, logged={"a": 1.0, "b": 5.0, "d": None}), replace(second, logged={"a": 3.0, "d": 1.0}))
    )  # fmt: skip
    values = {name: launch.value(metrics.metric(f"logged.{name}")) for name in "abcd"}
    assert values == {"a": 2.0, "b": 5.0, "c": None, "d": None}


def test_only_complete_names_are_metrics(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(RULE.format(metric="logged.answer"))
    assert load_thresholds(tmp_path / "t.toml", Catalogue())[0].metric == "logged.answer"
    (tmp_path / "t.toml").write_text(RULE.format(metric="logged."))
    with pytest.raises(ConfigError, match="no metric"):
        load_thresholds(tmp_path / "t.toml", Catalogue())


@pytest.mark.full
def test_a_script_logs_what_a_threshold_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "t.toml").write_text(RULE.format(metric="logged.answer"))
    words = ["run", "--script", "--cpus", "2", "--thresholds", "t.toml", "--results", "r"]
    assert main([*words, "--", "train.py"]) == 0
    (folder,) = (path.parent for path in tmp_path.glob("r/runs/*/*/record.json"))
    judged = [v for v in load(folder).verdicts if v.metric == "logged.answer"]
    assert {(v.rule, v.value, str(v.status)) for v in judged} == {("learns", 42.0, "PASS")}


def test_a_metric_that_nothing_logged_never_passes(sample_run: Any) -> None:
    """Neither if no rank logged it nor if one of two logged a value that is not finite."""
    rule = Threshold(
        name="learns", case="*", metric="logged.answer", at_least=0.0, unit="percent",
        source=BoundSource.REQUIREMENT,
    )  # fmt: skip
    logged_once: list[Mapping[str, float | None]] = [{}, {"answer": None}]
    for of_rank in logged_once:
        launches = []
        for launch in sample_run.launches:
            first, *others = launch.ranks
            ranks = [
                replace(first, logged=of_rank),
                *(replace(r, logged={"answer": 1.0}) for r in others),
            ]
            ranks = ranks if of_rank else [replace(rank, logged={}) for rank in launch.ranks]
            launches.append(replace(launch, ranks=tuple(ranks)))
        run = replace(sample_run, schema=SCHEMA, launches=tuple(launches))
        judged = [v for v in rejudge(run, [rule]).verdicts if v.rule == "learns"]
        assert judged and {v.status for v in judged} == {Status.INCONCLUSIVE}
        assert all("logged no finite values of logged.answer" in v.detail for v in judged)
