"""The page of every kind of record is complete, equals the record, and is safe from hostile names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging.verdicts import verdicts
from harness.base.documents import from_doc, to_doc
from harness.base.formatting import plain
from harness.interface.report import digest, screen, tables
from harness.interface.report.page.page import render
from harness.record import RunRecord
from tests.editing import timed

ROOT = Path(__file__).parents[3]


def embedded(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="record">(.*?)</script>', page, re.S)
    assert match
    return json.loads(match[1])


def numbers(value: Any) -> set[str]:
    """Return every number of a document, formatted as in cells."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(numbers, value)) if value else set()
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return {f"{value:.6g}"} if plain else set()


def test_every_number_of_the_page_is_in_its_document(main_job: RunRecord) -> None:
    page = render(main_job)
    known = numbers(embedded(page))
    shown = {f"{float(v):.6g}" for v in re.findall(r'data-v="([^"]+)"', page)}
    assert len(shown) > 200
    assert shown <= known, sorted(shown - known)[:5]


def test_the_numbers_of_the_document_are_those_of_the_record(main_job: RunRecord) -> None:
    document = embedded(render(main_job))
    assert [v["value"] for v in document["verdicts"]] == [v.value for v in main_job.verdicts]
    speeds = {c["case"]: c["throughput"] for c in document["cases"]}
    for plan in main_job.plans:
        for arm in plan.arms:
            rates = [x.throughput for x in main_job.launches
                     if x.purpose == "timed" and x.case == arm.case.hash]  # fmt: skip
            if rates and speeds[arm.case.id]:
                assert min(rates) <= speeds[arm.case.id] * 1.001
                assert speeds[arm.case.id] <= max(rates) * 1.001


def test_page_and_terminal_show_the_same_world_sizes(main_job: RunRecord) -> None:
    """Both render the same columns."""
    page, screen = render(main_job), "\n".join(tables.scaling_table(main_job, 300))
    cells = re.findall(r"<td[^>]*>(\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\])</td>", page)
    assert len(cells) >= 8
    assert all(cell in screen for cell in cells)


def test_sections_are_ordered_by_importance(main_job: RunRecord) -> None:
    page = render(main_job)
    order = ["requirements", "scaling", "time", "measured", "fabric", "covered", "machine", "read"]
    at = [page.index(f'<h2 id="{name}"') for name in order]
    assert at == sorted(at) and page.index('class="head') < at[0]
    for link in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{link}"' in page, link


def test_a_page_of_sixteen_cases_is_small(main_job: RunRecord) -> None:
    assert len({a.case.hash for p in main_job.plans for a in p.arms}) >= 16
    assert len(render(main_job).encode()) < 1_000_000


def interrupted(doc: Any) -> None:
    doc.update(complete=False, verdicts=[], launches=doc["launches"][:4])


def failed(doc: Any) -> None:
    cause = dict(rank=1, kind="signal", message="signal 9", phase="step", step=3, sure=True,
                 victims=[0], node=0)  # fmt: skip
    timed(doc, "@2")[0].update(status="failed", cause=cause, steps=None, ranks=[])


def single(doc: Any) -> None:
    (plan,) = doc["plans"]
    plan["arms"] = [a for a in plan["arms"] if a["name"] != "@2"]
    plan["contrasts"] = [c for c in plan["contrasts"] if c["subject"] != "@2"]
    doc["launches"] = [x for x in doc["launches"] if x["arm"] != "@2"]
    renamed(doc)


def renamed(doc: Any) -> None:
    """Replace the plan's old hash in launches, blocks and windows by the new one."""
    old = {x["plan"] for x in doc["launches"]}
    new = from_doc(RunRecord, {**doc, "verdicts": []}).plans[0].hash
    text_ = json.dumps({k: doc[k] for k in ("launches", "blocks", "windows")})
    for name in old - {""}:
        text_ = text_.replace(name, new)
    doc.update(json.loads(text_))


def nodes(doc: Any) -> None:
    doc["nodes"] = [{**doc["machine"], "host": f"node{i}"} for i in range(4)]
    doc["settings"]["nodes"] = [1, 1, 1, 1]


def gpus(doc: Any) -> None:
    doc["machine"].update(gpu="NVIDIA H100 80GB HBM3", num_gpus=8, gpu_memory_gib=80, driver="580")
    window = dict(index=0, name="NVIDIA H100 80GB HBM3", sm_clock_mhz=[1200, 1980],
                  power_w=[300.0, 690.0], temp_c=[50, 70], throttle=["hw_thermal"],
                  utilization_pct=[10, 99], energy_j=500.0)  # fmt: skip
    for x in doc["launches"]:
        x["gpus"] = [window]


def many_ranks(doc: Any) -> None:
    for x in timed(doc, "@2"):
        x["ranks"] = [{**x["ranks"][i % 2], "rank": i} for i in range(1000)]


def many_cases(doc: Any) -> None:
    """Add 30 scaling sweeps of other models."""
    plan, launches = doc["plans"][0], list(doc["launches"])
    for i in range(30):
        more = json.loads(json.dumps(plan))
        for arm in more["arms"]:
            arm["case"]["model"] = f"model{i}"
        more["name"] = f"ddp/model{i}-nano/weak"
        hashes = {a["name"]: from_doc(RunRecord, {**doc, "plans": [more]}).plans[0].arms[j].case.hash
                  for j, a in enumerate(more["arms"])}  # fmt: skip
        new = from_doc(RunRecord, {**doc, "plans": [more]}).plans[0].hash
        doc["plans"].append(more)
        for a, h in hashes.items():
            old = next(y["case"] for y in launches if y["arm"] == a)
            doc["described"][h] = doc["described"][old]
        doc["launches"] += [
            {**x, "plan": new, "case": hashes[x["arm"]], "launch": f"{i}-{x['launch']}"}
            for x in launches
        ]


def nothing(doc: Any) -> None:
    doc.update(plans=[], launches=[], verdicts=[], blocks=[], windows={}, described={})


KINDS: list[Callable[[Any], None]] = [
    interrupted, failed, single, nodes, gpus, many_ranks, nothing,
]  # fmt: skip


@pytest.mark.parametrize(
    "edit", [*KINDS, pytest.param(many_cases, marks=pytest.mark.full)], ids=lambda e: e.__name__
)
def test_a_record_of_every_kind_renders_completely(
    sample_run: RunRecord, sample: Path, edit: Callable[[Any], None]
) -> None:
    doc = json.loads(json.dumps(to_doc(sample_run)))
    edit(doc)
    run = from_doc(RunRecord, doc)
    run = from_doc(RunRecord, {**doc, "verdicts": to_doc(verdicts(run))}) if run.complete else run
    page = render(run, sample)
    body = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.S)
    plain = re.sub(r"<[^>]+>", " ", body)
    assert not re.search(r"\bNone\b|\bnan\b|\binf\b|Undefined", plain)
    for figure in re.findall(r"<figure>(.*?)</figure>", page, re.S):
        assert "<svg" in figure or "small" in figure
        assert not re.search(r"\b(nan|None|inf)\b", figure)
    assert not re.search(r"</h2>\s*<h2", body), "every section must have content"
    for width in (80, 100, 140):
        assert tables.summary(run, Path("x"), "again", width)


HOSTILE = "<script>alert(1)</script>\x1b[31m=cmd|' /C calc'!A0"


def test_hostile_names_are_harmless(sample_run: RunRecord, sample: Path) -> None:
    doc = json.loads(json.dumps(to_doc(sample_run)))
    doc["notes"] = [HOSTILE]
    doc["machine"].update(host=HOSTILE, cpu=HOSTILE)
    doc["software"][HOSTILE] = HOSTILE
    for v in doc["verdicts"]:
        v.update(case=f"=1+2{HOSTILE}", detail=HOSTILE, status="FAIL", value=None)
    doc["launches"][-1]["wrong"] = [HOSTILE]
    run = from_doc(RunRecord, doc)
    page = render(run, sample)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    shown = (tables.summary, screen.lines)
    lines = [line for form in shown for line in form(run, Path("x"), "again", 100)] + [HOSTILE]
    assert not any("\x1b" in plain(line) for line in lines)
    cells = [line.split(",") for line in digest.table(run)[1:]]
    assert not any(c.lstrip('"')[:1] in "=+@" and c for row in cells for c in row[:3])
    assert not any("<script>" in line for line in digest.markdown(run)[2:-2])


def test_drawings_come_from_the_samples(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    """With samples every step is drawn; without them there are only tables."""
    with_files, without = render(sample_run, sample), render(sample_run)
    assert "Every step" in with_files and "Every step" not in without
    copy = tmp_path / "copy"
    shutil.copytree(sample, copy)
    for file in copy.glob("launches/*/*.npz"):
        file.unlink()
    assert "Every step" not in render(sample_run, copy)
