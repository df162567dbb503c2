"""The acceptance document: results that were not measured, or that were changed, do not pass."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import html
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.nodes import Examined, drift
from harness.base.documents import from_doc, to_doc
from harness.cases import Threshold
from harness.features.acceptance.clauses import evidence, margin, worst_first
from harness.features.acceptance.contract import Clause, Contract, Terms
from harness.features.acceptance.handover import handover
from harness.interface.cli.main import main
from harness.record import Reason, RunRecord, Status, chain, signature
from harness.record.fabric import Paired, Suspects
from harness.record.record import SCHEMA
from harness.record.store import load, save
from harness.record.upgrade import upgrade
from tests.editing import change

GOLDEN = Path(__file__).parents[2] / "golden"
TODAY = datetime.date(2026, 11, 23)
RULE = dict(name="weak", case="ddp/decoder-nano/weak", metric="efficiency", unit="1",
            source="requirement", baseline="plain", world=[2])  # fmt: skip


def rule(**fields: Any) -> Threshold:
    return from_doc(Threshold, {**RULE, "at_least": 0.5, **fields})


def agreed(*rules: Threshold) -> Contract:
    """Return a contract whose clauses are these rules."""
    clauses = tuple(Clause(rule=r, says="", asked_by="") for r in rules)
    return Contract(name="agreed", terms=Terms(), clauses=clauses, groups=(), sha256="0" * 64)


@pytest.mark.parametrize(
    ("rules", "status", "waived"),
    [
        ([rule()], Status.PASS, 0),
        ([rule(), rule(name="other", case="fsdp/*")], Status.INCONCLUSIVE, 0),
        ([rule(at_least=0.99)], Status.INCONCLUSIVE, 0),
        ([], Status.RECORDED, 0),
    ],
)
def test_the_document_has_one_status_for_all_requirements(
    sample_run: RunRecord, sample: Path, rules: list[Threshold], status: Status, waived: int
) -> None:
    document = handover([(sample_run, sample)], TODAY, agreed(*rules))
    assert document.status is status and document.num_waived == waived
    assert len(document.requirements) == len(rules)


def failing(run: RunRecord) -> RunRecord:
    """Return the run with a FAIL of each rule."""
    verdicts = [replace(v, status=Status.FAIL) if v.rule else v for v in run.verdicts]
    return replace(run, verdicts=tuple(verdicts))


def test_a_fail_counts_unless_a_valid_waiver_covers_it(
    sample_run: RunRecord, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing(sample_run)
    monkeypatch.setattr(
        "harness.features.acceptance.handover.verify", lambda *a: type("V", (), {"differences": ()})
    )
    assert handover([(run, sample)], TODAY).status is Status.FAIL
    for until, status in (("2026-12-31", False), ("2026-01-01", True)):
        waiver = {"reason": "new switch", "expires": until}
        waived = replace(run, thresholds=tuple(
            from_doc(Threshold, {**to_doc(t), "waiver": waiver}) for t in run.thresholds
        ))  # fmt: skip
        document = handover([(waived, sample)], TODAY)
        assert (document.status is Status.FAIL) is status and document.num_waived == (not status)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(Status.ERROR, Reason.IMPLAUSIBLE), (Status.FAIL, Reason.UNEXPECTED_PASS)],
)
def test_a_waiver_is_of_an_expected_fail_alone(
    sample_run: RunRecord,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: Status,
    reason: Reason,
) -> None:
    """It covers neither an incorrect training run nor a bound that is met after all."""
    monkeypatch.setattr(
        "harness.features.acceptance.handover.verify", lambda *a: type("V", (), {"differences": ()})
    )
    waiver = {"reason": "new switch", "expires": "2026-12-31"}
    run = replace(
        sample_run,
        verdicts=tuple(
            replace(v, status=status, reason=reason) if v.rule else v for v in sample_run.verdicts
        ),
        thresholds=tuple(
            from_doc(Threshold, {**to_doc(t), "waiver": waiver}) for t in sample_run.thresholds
        ),
    )
    document = handover([(run, sample)], TODAY)
    assert document.status is status and document.num_waived == 0


def test_a_changed_record_is_not_accepted(
    sample_run: RunRecord, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sample, copy)
    verdicts = [replace(v, value=0.999) if v.rule else v for v in sample_run.verdicts]
    save(replace(sample_run, verdicts=tuple(verdicts)), copy)
    assert main(["accept", "report", str(copy), "--to", str(tmp_path / "to")]) not in (0, 1, 10)
    assert "DOES NOT VERIFY" in capsys.readouterr().out
    page = (tmp_path / "to" / "handover.html").read_text()
    assert "DOES NOT VERIFY" in page and '<p class="word ERROR">ERROR</p>' in page


@pytest.mark.parametrize("lacks", ["nothing", "chain", "signature"])
def test_what_nobody_vouches_for_is_no_acceptance(sample: Path, tmp_path: Path, lacks: str) -> None:
    """Without a chain, the worst launches may have been left out; a signature must be of this run."""
    copy = Path(shutil.copytree(sample, tmp_path / "copy"))
    if lacks == "chain":
        (copy / chain.FILE).unlink()
        change(copy, lambda doc: doc.update(head=""))
    elif lacks == "signature":
        other = signature.Signature(head="0" * 64, key="ssh-ed25519 AAAA", signature="")
        (copy / signature.FILE).write_text(json.dumps(to_doc(other)))
    word = handover([(load(copy), copy)], TODAY, agreed(rule())).status
    assert word is (Status.PASS if lacks == "nothing" else Status.ERROR)


def test_one_run_is_not_handed_over_as_two(sample: Path, sample_run: RunRecord) -> None:
    other = sample.with_name("ddp-nano-again")
    twice, once = (
        handover([(sample_run, sample), (load(path), path)], TODAY, agreed(rule()))
        for path in (sample, other)
    )
    assert twice.status is Status.ERROR and "has the samples of" in twice.seals[1].differences[0]
    assert not any(seal.differences for seal in once.seals)


def test_the_noise_of_the_launches_is_told(sample: Path, tmp_path: Path) -> None:
    """A host that was idle before the run may have been busy during its launches."""
    copy = Path(shutil.copytree(sample, tmp_path / "copy"))

    def busy(doc: Any) -> None:
        doc["admission"] = [{"check": "load", "level": "ok", "text": "0 %", "advice": ""}]
        for i, launch in enumerate(doc["launches"]):
            launch["foreign_load"] = 0.78 if i == len(doc["launches"]) - 1 else 0.1

    change(copy, busy)
    main(["accept", "report", str(copy), "--to", str(tmp_path / "to")])
    page = (tmp_path / "to" / "handover.html").read_text()
    assert "load, before the run" in page
    assert re.search(
        r"load, during launches</dt>\s*<dd>other processes used 10%.*78% at most", page
    )


def test_contract_rules_from_after_the_measurement_are_marked(
    sample_run: RunRecord, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = tmp_path / "contract.toml"
    contract.write_text(
        '[[rule]]\nname = "new"\ncase = "ddp/decoder-nano/weak"\nmetric = "efficiency"\nunit = "1"\n'
        'mode = "weak"\nbaseline = "plain"\nworld = [2]\nat_least = 0.5\nsource = "requirement"\n'
    )
    words = [
        "accept",
        "report",
        str(sample),
        "--contract",
        str(contract),
        "--to",
        str(tmp_path / "to"),
    ]
    assert main(words) == 0
    assert "given after the measurement" in capsys.readouterr().out
    known = [t for t in sample_run.thresholds if t.name == "cpu_ddp_weak"]
    (document,) = handover([(sample_run, sample)], TODAY, agreed(*known)).requirements
    assert not document.late


def test_slow_nodes_are_excluded_and_differing_ones_are_named(
    sample_run: RunRecord, sample: Path
) -> None:
    pair = Paired(a="n1", b="n2", bps=1e9)
    nodes = tuple(replace(sample_run.machine, host=f"n{i}", kernel="6.1" if i == 2 else "6.8")
                  for i in range(4))  # fmt: skip
    suspects = Suspects(pairs=(pair,), limit_bps=2e9, nodes=("n2",), links=())
    run = replace(sample_run, suspects=suspects, nodes=nodes)
    document = handover([(run, sample)], TODAY)
    assert [host for host, _ in document.exclude] == ["n2"]
    assert [(d.fact, d.usual, d.others) for d in document.drift] == [
        ("kernel", "6.8", (("n2", "6.1"),))
    ]


def test_nodes_that_lack_or_differ_in_a_fact_are_reported() -> None:
    facts = [{"a": "1", "hardware: host": str(i)} for i in range(4)] + [{"hardware: host": "x"}]
    nodes = [Examined(host=f"n{i}", facts=f, findings=()) for i, f in enumerate(facts)]
    (difference,) = drift(nodes)
    assert (difference.fact, difference.usual, difference.others) == ("a", "1", (("n4", "none"),))
    assert list(drift(nodes[:4])) == []


def test_the_folder_contains_what_its_document_lists(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["accept", "report", str(sample), "--to", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {p.name for p in tmp_path.iterdir()} == {"handover.html", "runs.tar.gz", "exclude.txt"}
    page = (tmp_path / "handover.html").read_text()
    assert document["sha256"] in page and document["seals"][0]["head"] in page
    assert (
        main(["accept", "unpack", str(tmp_path / "runs.tar.gz"), "--to", str(tmp_path / "out")])
        == 0
    )
    (folder,) = (tmp_path / "out").glob("runs/*/*")
    assert main(["accept", "report", str(folder), "--to", str(tmp_path / "again")]) == 10


@pytest.fixture
def main_job(monkeypatch: pytest.MonkeyPatch) -> tuple[RunRecord, Path]:
    """Return a record of ``pytest suites/`` with simulated compute and a control, without its
    samples.
    """
    doc = json.loads(gzip.decompress((GOLDEN / "main-job.json.gz").read_bytes()))
    agrees = type("V", (), {"differences": ()})
    monkeypatch.setattr("harness.features.acceptance.handover.verify", lambda *a: agrees)
    return from_doc(RunRecord, upgrade(doc, SCHEMA), "record"), GOLDEN


def test_stand_ins_and_controls_accept_no_system(main_job: tuple[RunRecord, Path]) -> None:
    made = handover([main_job], TODAY)
    cases = {v.case for r in made.requirements for v in (e.result for e in r.evidence)}
    assert cases and not any("paced" in case or "broken" in case for case in cases)
    assert {r.rule.name for r in made.stand_ins} >= {"planted_85", "paced_ddp"}
    assert not {r.rule for r in made.stand_ins} & {r.rule for r in made.requirements}


def test_a_contract_that_only_simulated_compute_passes_is_inconclusive(
    main_job: tuple[RunRecord, Path],
) -> None:
    run, _ = main_job
    paced = next(t for t in run.thresholds if t.name == "paced_ddp")
    seen = {v.status for v in run.verdicts if v.rule == "paced_ddp"}
    assert seen == {Status.PASS}, "the rule must pass on simulated compute"
    made = handover([main_job], TODAY, agreed(paced))
    assert made.status is Status.INCONCLUSIVE
    assert [r.status for r in made.requirements] == [None]
    assert [r.status for r in made.stand_ins] == [Status.PASS]


@pytest.mark.parametrize("setting", [{"engine": "emulated"}, {"shared_gpu": True}])
def test_emulated_nodes_and_shared_gpus_do_not_count_for_acceptance(
    sample_run: RunRecord, sample: Path, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees = type("V", (), {"differences": ()})
    monkeypatch.setattr("harness.features.acceptance.handover.verify", lambda *a: agrees)
    run = replace(sample_run, settings=replace(sample_run.settings, **setting))
    assert handover([(run, sample)], TODAY, agreed(rule())).status is Status.INCONCLUSIVE


def test_an_error_without_a_rule_fails_the_document(
    sample_run: RunRecord, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees = type("V", (), {"differences": ()})
    monkeypatch.setattr("harness.features.acceptance.handover.verify", lambda *a: agrees)
    broken = [replace(v, status=Status.ERROR, rule=None) for v in sample_run.verdicts]
    run = replace(sample_run, thresholds=(), verdicts=tuple(broken))
    assert handover([(run, sample)], TODAY).status is Status.ERROR


def test_the_document_lists_what_does_not_count(
    main_job: tuple[RunRecord, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    save(main_job[0], folder)
    main(["accept", "report", str(folder), "--to", str(tmp_path / "to")])
    assert "not counted (simulated or controls):" in capsys.readouterr().out
    first_sheet = (tmp_path / "to" / "handover.html").read_text().partition("</section>")[0]
    assert "nothing of this system" in first_sheet and "planted_85" in first_sheet


def test_a_contract_without_rules_requires_nothing(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.toml").write_text("")
    words = ["accept", "report", str(sample), "--contract", str(tmp_path / "empty.toml")]
    assert main([*words, "--to", str(tmp_path / "to")]) == 4
    assert "requires nothing" in capsys.readouterr().err and not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["accept", "pack", "{}", "--to", "{}/in/the/way"],
        ["report", "export", "{}", "--to", "{}/in/the/way.csv"],
        ["accept", "report", "{}", "--to", "{}/in/the"],
        ["compare", "machines", "{}", "{}", "--page", "{}/in/the/way"],
    ],
    ids=lambda words: words[0],
)
def test_an_unwritable_target_is_one_clear_error(
    words: list[str], sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("a file in the way")
    given = [word.format(tmp_path if "/in/" in word else sample) for word in words]
    assert main(given) == 4
    error = capsys.readouterr().err
    assert "cannot be written" in error and "Traceback" not in error


def test_the_contract_travels_and_the_printed_recipe_gives_the_same_word(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipient runs only the commands in the folder, and needs nothing else."""
    text = "[[rule]]\n" + "".join(
        f"{name} = {json.dumps(value)}\n"
        for name, value in {**RULE, "mode": "weak", "at_least": 0.5}.items()
    )
    (tmp_path / "agreed.toml").write_text(text)
    words = ["accept", "report", str(sample), "--contract", str(tmp_path / "agreed.toml")]
    assert main([*words, "--to", str(tmp_path / "out")]) == 0
    monkeypatch.chdir(tmp_path / "out")
    page = Path("handover.html").read_text()
    assert hashlib.sha256(text.encode()).hexdigest() in page
    recipe = html.unescape(re.search(r"<pre[^>]*>(sha256sum.*?)</pre>", page, re.S)[1])  # type: ignore[index]
    lines = [line.partition("#")[0].strip() for line in recipe.splitlines()[1:]]
    assert lines[-1].endswith("contract.toml") and len(lines) == 3
    assert [main(shlex.split(line)[1:]) for line in lines] == [0, 0, 0]
    again = Path("again/handover.html").read_text()
    word = re.compile(r'<p class="word (\w+)">')
    assert word.search(page)[1] == word.search(again)[1] == "PASS"  # type: ignore[index]


def test_evidence_is_sorted_by_its_distance_from_the_bound(sample_run: RunRecord) -> None:
    """A good world size must not represent the whole scaling sweep."""
    verdict = next(v for v in sample_run.verdicts if v.rule and v.value)
    verdicts = [replace(verdict, value=value) for value in (0.9, 0.55, 0.7)]
    for bound, order in (
        (dict(at_least=0.5), [0.55, 0.7, 0.9]),
        (dict(at_most=1.0, at_least=None), [0.9, 0.7, 0.55]),
    ):
        asked = rule(name=verdict.rule, **bound)
        shown = worst_first([evidence(sample_run, "", asked, v) for v in verdicts])
        assert [e.result.value for e in shown] == order
    assert margin(rule(), replace(verdict, value=None)) is None


CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
#: A script for the browser that lists cells outside the page or cut off by a small box.
CUT = """<script>addEventListener("load", () => {
  const main = document.querySelector("main").getBoundingClientRect().right + 1;
  const cut = [...document.querySelectorAll("td,th,pre,dd,figure,.wide")].filter(e =>
    e.getBoundingClientRect().right > main || (e.scrollWidth > e.clientWidth + 1 && e.clientWidth));
  document.body.dataset.cut = JSON.stringify(cut.map(e => e.textContent.slice(0, 60)));
  document.body.dataset.cells = document.querySelectorAll("td").length;
})</script></body>"""


def browse(page: Path, *arguments: str) -> str:
    profile = f"--user-data-dir={page.parent}/profile"
    words = [str(CHROMIUM), *FLAGS, profile, *arguments, page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


def cut_off(page: Path, document: str, width: int) -> list[str]:
    """Return the texts that a reader of the printed page does not see at this width."""
    page.write_text(document.replace("@media print", "@media all").replace("</body>", CUT))
    dom = browse(page, f"--window-size={width},2000", "--virtual-time-budget=5000", "--dump-dom")
    cells = re.search(r'data-cells="(\d+)"', dom)
    assert cells is not None and int(cells[1]) > 20
    match = re.search(r'data-cut="([^"]*)"', dom)
    assert match is not None
    return list(json.loads(html.unescape(match[1])))


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: bash scripts/system-packages.sh")
def test_no_cell_is_cut_off_on_a_screen_or_on_a4(
    main_job: tuple[RunRecord, Path], tmp_path: Path
) -> None:
    """Check a long record at 180 mm, and its printed pages."""
    folder = tmp_path / "run"
    folder.mkdir()
    save(main_job[0], folder)
    main(["accept", "report", str(folder), "--to", str(tmp_path / "to")])
    document = (tmp_path / "to" / "handover.html").read_text()
    for width in (680, 1000):
        assert cut_off(tmp_path / "page.html", document, width) == []
    wide = document.replace("<td", "<td style='white-space:nowrap;min-width:300px'")
    assert cut_off(tmp_path / "page.html", wide, 680), (
        "the check must detect cells that are too wide"
    )
    printed = tmp_path / "page.pdf"
    browse(tmp_path / "to" / "handover.html", "--no-pdf-header-footer", f"--print-to-pdf={printed}")
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
    assert 4 <= sheets <= 40


def test_only_a_decided_document_has_signature_lines(sample: Path, tmp_path: Path) -> None:
    pages = {}
    for bound, word in ((0.5, "PASS"), (0.99, "INCONCLUSIVE")):
        text = "[[rule]]\n" + "".join(
            f"{name} = {json.dumps(value)}\n"
            for name, value in {**RULE, "mode": "weak", "at_least": bound}.items()
        )
        (tmp_path / "agreed.toml").write_text(text)
        words = ["accept", "report", str(sample), "--contract", str(tmp_path / "agreed.toml")]
        main([*words, "--to", str(tmp_path / word)])
        pages[word] = (tmp_path / word / "handover.html").read_text()
    assert "for the supplier" in pages["PASS"]
    assert "for the supplier" not in pages["INCONCLUSIVE"]
    assert "There are no lines to sign" in pages["INCONCLUSIVE"]
    first, _, rest = pages["INCONCLUSIVE"].partition("</section>")
    assert "NOT SIGNED" in first and "more pairs would decide" in rest
