"""Invalid input of every kind gives one clear error or an answer, never a traceback.

Arguments, cases and settings, rules, cluster files, records, traces and users' files are damaged in
the ways that people and disks damage them. ``FUZZ=20`` tries twenty times as many, as in ``tox -e
full``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from harness.base.errors import Exit, ScaleproofError
from harness.cases import Catalogue, Device, Site
from harness.cases.heads import read_head
from harness.cases.rules import load_thresholds
from harness.cases.targets import plans_of
from harness.interface.cli.commands.report_timeline import _of_traces
from harness.interface.cli.main import commands, main
from harness.interface.offered import OPTIONS
from harness.launch import cluster
from tests.analysis.timeline.writing import event, step

ROOT = Path(__file__).parents[2]
KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", " ", "x", "0", "-1", "1e9", "é", "日本", "\x00", "../..", "a/b/c/d", "%s", "{}",
    [], [0], [[]], ["x"], {}, {"x": 1}, "x" * 5000,
]  # fmt: skip
junk = st.sampled_from(JUNK)
words = st.one_of(
    st.sampled_from([str(x) for x in JUNK if "\x00" not in str(x)]),
    st.text("abz/-=.:*[]@+", max_size=12),
)


def tries(count: int) -> Callable[[Any], Any]:
    quick = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    count *= int(os.environ.get("FUZZ", "1"))
    # CI tries the same inputs each time, ``tox -e full`` random ones.
    always = "FUZZ" not in os.environ
    return settings(
        max_examples=count, deadline=None, derandomize=always, suppress_health_check=quick
    )


def refused(act: Callable[[], object]) -> bool:
    """Return whether ``act`` raises one clear error; any other exception fails the test."""
    try:
        act()
    except ScaleproofError as error:
        assert str(error).strip() and "Traceback" not in str(error)
        assert error.exit in (Exit.USAGE, Exit.ERROR)
        return True
    return False


def broken(draw: st.DrawFn, value: Any, times: int = 3) -> Any:
    """Return a document with a few of its values replaced, dropped or renamed."""
    out = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, times))):
        at, place = out, None
        while isinstance(at, dict | list) and at:
            keys = sorted(at) if isinstance(at, dict) else range(len(at))
            key = draw(st.sampled_from(list(keys)))
            place, at = (at, key), at[key]
            if draw(st.booleans()) and place is not None and not isinstance(at, dict | list):
                break
        if place is None:
            return copy.deepcopy(draw(junk))
        holder, key = place
        how = draw(st.sampled_from(["replace", "drop", "rename"]))
        if how == "drop":
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(draw(junk))
    return out


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    starting = {"jobs join", "new", "check", "run plan", "run demo", "compare pr"}
    command = draw(st.sampled_from([*sorted({*commands()} - starting), "rnu"]))
    options = [f"--{o.name}" for o in OPTIONS]
    more = st.one_of(st.sampled_from([*options, "--json", "--set", "--metric", "--every"]), words)
    line = [*command.split(), *draw(st.lists(more, max_size=5))]
    if command in (
        "run",
        "network",
        "network pairs",
        "faults recover",
    ):  # This test must not start launches.
        return ["run", *line[len(command.split()) :], "--dry-run", "--engine=nope"]
    return line


@given(line=command_lines())
@tries(8)
def test_no_command_line_causes_an_internal_error(
    line: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        try:
            status = main(line)
        except SystemExit as left:  # --help exits.
            status = int(left.code or 0)
    assert status != Exit.INTERNAL, line


@given(name=st.one_of(words, st.builds("{}/{}-{}/{}".format, *[st.sampled_from(
    ["ddp", "compressed:topk", "pipeline", "decoder", "mlp", "nano", "tiny", "weak", "strong", "x", ""]
)] * 4)), key=st.one_of(words, st.sampled_from(
    ["micro_batch", "global_batch", "precision", "shares", "stragglers", "seq_len", "ddp.bucket_cap_mb",
     "pipeline.microbatches", "devices_per_rank", "accumulate", "seed", "data", "optimizer"]
)), value=junk)  # fmt: skip
@example(name="", key="micro_batch", value=float("inf"))
@tries(200)
def test_any_case_and_setting_is_accepted_or_refused(name: str, key: str, value: Any) -> None:
    for case in (name, "ddp/decoder-nano/weak", "pipeline/decoder-nano/strong"):
        refused(lambda case=case: plans_of(case, SITE, KNOWN, {key: value}))


RULE = {
    "name": "a", "case": "ddp/decoder-*/weak", "mode": "weak", "baseline": "plain", "world": 2,
    "metric": "efficiency", "at_least": 0.85, "unit": "1", "source": "requirement",
}  # fmt: skip


def toml(value: Any) -> str:
    """Return a value as TOML, or as JSON if TOML cannot represent it."""
    return json.dumps(value)


@given(data=st.data())
@tries(150)
def test_any_rule_is_accepted_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    rule = broken(data.draw, RULE)
    rows = rule.items() if isinstance(rule, dict) else [("x", rule)]
    text = "[[rule]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in rows)
    file = tmp_path / "thresholds.toml"
    file.write_bytes(
        data.draw(st.sampled_from([b"", b"# caf\xe9\n", b"[", b"\x00"])) + text.encode()
    )
    refused(lambda: load_thresholds(file, KNOWN))


def test_a_rule_with_an_invalid_value_is_refused(tmp_path: Path) -> None:
    """Try each invalid value at each key of a valid rule: only meaningful values may be accepted."""
    file, taken = tmp_path / "thresholds.toml", []
    for key in RULE:
        for value in JUNK:
            rule = {**RULE, key: value}
            file.write_text("[[rule]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in rule.items()))
            if not refused(lambda: load_thresholds(file, KNOWN)):
                taken.append((key, value))
    named = {("name", value) for value in JUNK if isinstance(value, str)}
    assert [pair for pair in taken if pair not in named] == [
        ("world", 1), ("at_least", 1), ("at_least", 0.5)
    ]  # fmt: skip


@given(
    data=st.data(), engine=st.sampled_from(["hosts", "slurm", "kubernetes", "ray", "torchrun", "x"])
)
@tries(200)
def test_any_cluster_file_is_accepted_or_refused(
    data: st.DataObject, engine: str, tmp_path: Path
) -> None:
    known = KNOWN.entries["engines"]
    tables = {n: dict(e.head.get("SETTINGS", {})) for n, e in known.items()}
    rows = broken(data.draw, tables)
    file = tmp_path / "cluster.toml"
    text = "".join(
        f"[{name}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in table.items())
        for name, table in rows.items()
        if isinstance(table, dict)
    )
    file.write_text(text)
    refused(lambda: cluster.cluster_settings(file, engine if engine in known else "hosts", known))


@given(data=st.data())
@tries(20)
def test_any_edited_record_is_accepted_or_refused(
    data: st.DataObject, sample: Path, tmp_path: Path
) -> None:
    """Every reading command must answer or report one clear error for an edited record."""
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    doc = broken(data.draw, json.loads((sample / "record.json").read_text()))
    text = json.dumps(doc)
    (run / "record.json").write_text(text)
    (run / "record.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())
    verb = data.draw(st.sampled_from(["verify", "report", "compare", "ingest", "timeline"]))
    more = {"compare": [str(sample)], "ingest": ["--results", str(tmp_path / "results")]}
    assert main([verb, str(run), *more.get(verb, [])]) != Exit.INTERNAL


TRACE = {
    "schemaVersion": 1, "baseTimeNanoseconds": 0,
    "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2},
    "traceEvents": [
        step(1, 0, 10_000), step(2, 10_000, 20_000), step(3, 20_000, 30_000),
        event("aten::mm", 1000, 6000), event("aten::mm", 11_000, 16_000),
        event("gloo:all_reduce", 7000, 9000, "user_annotation", 2),
        event("aten::mm", 21_000, 26_000),
    ],
}  # fmt: skip


@given(data=st.data())
@example(data=None)
@tries(200)
def test_any_trace_is_accepted_or_refused(data: st.DataObject | None, tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(TRACE if data is None else broken(data.draw, TRACE)))
    _of_traces([file], None) if data is None else refused(lambda: _of_traces([file], None))


HEAD = 'SIZES = {"small": dict(d=256, batch=32)}\nSUPPORTS = dict(worlds="any", replicas=True)\n'


@given(at=st.integers(0, len(HEAD) - 1), length=st.integers(0, 12), put=words)
@example(at=9, length=7, put="{}")  # This head has a key that cannot be hashed.
@tries(150)
def test_any_head_of_a_users_file_is_accepted_or_refused(
    at: int, length: int, put: str, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(HEAD[:at] + put + HEAD[at + length :])
    refused(lambda: read_head(folder / "net.py"))
    refused(lambda: Catalogue([folder]).entries)
