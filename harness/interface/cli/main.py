"""``scaleproof``: one function for each verb."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.analysis import compare
from harness.analysis.verify import rejudge, verify
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, ScaleproofError
from harness.host import admission, doctor
from harness.interface import options
from harness.interface.cli import baseline, detached, fabric, join, nsys, timeline
from harness.interface.cli import plan as planned
from harness.interface.cli.arguments import arguments_of
from harness.interface.report import comparison, tables, text
from harness.interface.report.live import Live
from harness.measure import resume
from harness.measure.measurer import Measurer
from harness.measure.settings import Settings, end_on_sigterm
from harness.record import RunRecord
from harness.record.outcome import exit_status
from harness.record.store import load, write_text
from harness.spec import Ablation, targets
from harness.spec.catalogue import KINDS, Catalogue
from harness.spec.rules import load_thresholds
from harness.spec.site import Site


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parsed = arguments_of(arguments)
        return int(_VERBS[parsed.verb](parsed, arguments))
    except ScaleproofError as error:
        sys.stderr.write(
            text.paint(f"ERROR: {error}\n") if text.wants_color(sys.stderr) else f"ERROR: {error}\n"
        )
        return int(error.exit)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return int(Exit.PASSED)
    except OSError as error:
        sys.stderr.write(f"ERROR: {error}\n  try       scaleproof doctor\n")
        return int(Exit.USAGE)
    except Exception:
        traceback.print_exc()
        sys.stderr.write("ERROR: this is a bug of scaleproof; the lines above say where\n")
        return int(Exit.INTERNAL)


def _emit(parsed: argparse.Namespace, document: Json, lines: Sequence[str]) -> None:
    """JSON or lines, on stdout."""
    if parsed.json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        text.write(lines, sys.stdout)


def _doctor(parsed: argparse.Namespace, _: list[str]) -> Exit:
    installed, host = doctor.examine(), admission.examine()
    found = [*installed, *host, *join.engines(Catalogue().entries["engines"])]
    wide = max(len(f.check) for f in found)
    lines = []
    for f in found:
        lines.append(f" {f.level:<4}  {f.check:<{wide}}  {f.text}")
        if f.advice:
            lines.append(f"       {'':<{wide}}  try: {f.advice}")
    broken = sum(f.level is admission.Level.BAD for f in installed)
    unfit = sum(f.level is admission.Level.BAD for f in host)
    warned = sum(f.level is admission.Level.WARN for f in found)
    lines.append(f" {len(found)} checks, {warned} warnings, {broken + unfit} problems")
    if unfit:
        lines.append(" a run now would end INCONCLUSIVE: noisy host")
    _emit(parsed, to_doc(tuple(found)), lines)
    return Exit.FAILED if broken else Exit.INCONCLUSIVE if unfit else Exit.PASSED


def _list(parsed: argparse.Namespace, _: list[str]) -> Exit:
    known = options.catalogue(parsed.path, [p for p in [Path("suites")] if p.is_dir()])
    kinds = [parsed.kind] if parsed.kind else list(KINDS)
    document = {
        kind: [
            {"name": e.name, "doc": e.doc, "path": str(e.path), "head": dict(e.head)}
            for e in known.entries[kind].values()
        ]
        for kind in kinds
    }
    lines = []
    for kind in kinds:
        entries = known.entries[kind].values()
        wide = max((len(e.name) for e in entries), default=0)
        lines.append(kind)
        for e in entries:
            lines.append(f"  {e.name:<{wide}}  {e.doc}")
            if parsed.kind and (knobs := {k: v for k, v in e.knobs.items() if k != "version"}):
                shown = ", ".join(f"{e.name}.{k}={v}" for k, v in knobs.items())
                lines += [f"  {'':<{wide}}  knobs: {shown}"]
            if parsed.kind and "SIZES" in e.head:
                lines += [f"  {'':<{wide}}  sizes: {', '.join(e.head['SIZES'])}"]
    _emit(parsed, document, lines)
    return Exit.PASSED


def _settings(parsed: argparse.Namespace) -> dict[str, Json]:
    """``--set NAME=VALUE``: values are JSON where they parse as JSON, else text."""
    out: dict[str, Json] = {}
    for item in parsed.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise ScaleproofError(f"--set {item}", expected="NAME=VALUE", fix=f"--set {item}=...")
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = value
    return out


def _ablations(parsed: argparse.Namespace) -> list[Ablation]:
    return [Ablation(kind) for kind in dict.fromkeys(parsed.ablate)]


def _values(parsed: argparse.Namespace) -> dict[str, Any]:
    return {o.name: getattr(parsed, o.name.replace("-", "_")) for o in options.OPTIONS}


def _measurer(
    parsed: argparse.Namespace, known: Catalogue, site: Site, arguments: list[str]
) -> Measurer:
    target = Path((getattr(parsed, "target", None) or "suites").partition("::")[0])
    beside = [target if target.is_dir() else target.parent, Path("suites")]
    rules = options.thresholds(parsed.thresholds, beside, parsed.references)
    settings = Settings(
        results=Path(parsed.results or "results"),
        engine=site.engine,
        nodes=site.nodes,
        device=site.device,
        cluster=None if parsed.cluster is None else Path(parsed.cluster),
        budget_s=options.seconds(parsed.time_budget),
        strict=parsed.strict,
        timeline=not parsed.no_timeline,
        fabric=not parsed.no_fabric,
        argv=("scaleproof", *arguments),
    )
    stream = sys.stderr if parsed.json else sys.stdout
    end_on_sigterm()
    measurer = Measurer(known, settings, rules, Live(stream))
    measurer.run.notes += detached.notes()
    return measurer


def _plan(parsed: argparse.Namespace, arguments: list[str]) -> Exit:
    known = options.catalogue(parsed.path)
    site = options.site(_values(parsed), known)
    plans = targets.plans_of(parsed.target, site, known, _settings(parsed), _ablations(parsed))
    measurer = _measurer(parsed, known, site, arguments)
    try:
        measurer.describe([a.case for p in plans for a in p.arms])
        found = [planned.outlook(p, measurer.run.described, measurer.run.thresholds) for p in plans]
    finally:
        measurer.close()
    _emit(parsed, [to_doc(f) for f in found], planned.lines(found, measurer.run.machine))
    return Exit.PASSED


def _run(parsed: argparse.Namespace, arguments: list[str]) -> Exit:
    if parsed.nsys:
        nsys.become(arguments, Path(parsed.results or "results"))
    known = options.catalogue(parsed.path)
    if parsed.resume:
        folder = Path(parsed.resume)
        parsed.results = str(folder.resolve().parents[2])
        site, parsed.cluster = resume.where(load(folder))
        measurer = _measurer(parsed, known, site, arguments)
        measurer.resume(folder)
        plans = list(measurer.run.plans)
    elif parsed.target:
        site = options.site(_values(parsed), known)
        plans = targets.plans_of(parsed.target, site, known, _settings(parsed), _ablations(parsed))
        if parsed.detach or parsed.dry_run:
            _emit(parsed, *_instead(parsed, known, site, arguments))
            return Exit.PASSED
        measurer = _measurer(parsed, known, site, arguments)
    else:
        raise ScaleproofError(
            "nothing to run",
            expected="a case, a recipe or --resume RUN",
            fix="scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    stopped = False
    measurer.run.announce(plans)
    try:
        measurer.measure(plans)
    except KeyboardInterrupt:
        stopped = True
    finally:
        measurer.progress.clear()
        measurer.close()
    record = measurer.run.save(complete=not stopped)
    rerun = shlex.join(["scaleproof", *arguments])
    _emit(
        parsed,
        to_doc(record),
        tables.summary(record, text.shown(measurer.run.folder), rerun, text.columns()),
    )
    if stopped:
        return Exit.INTERRUPTED
    for plan in plans:
        measurer.verdicts(plan)  # raises what kept it from being measured
    return _exit(record, parsed.inconclusive == "fail")


def _instead(
    parsed: argparse.Namespace, known: Catalogue, site: Site, arguments: list[str]
) -> tuple[Json, list[str]]:
    """What is done of a run that is not to be run here and now."""
    settings = options.engine_settings(_values(parsed), known)
    if parsed.detach:
        return detached.submit(site, settings, arguments, Path(parsed.results or "results"))
    return join.dry_run(known.get("engines", site.engine), site, settings)


def _detached(parsed: argparse.Namespace, arguments: list[str]) -> Exit:
    if parsed.verb != "collect":
        _emit(parsed, *detached.act(parsed))
        return Exit.PASSED
    parsed.run, parsed.every = detached.collect(parsed.results, parsed.job), False
    _report(parsed, arguments)
    return _exit(load(parsed.run))


def _network(parsed: argparse.Namespace, arguments: list[str]) -> Exit:
    known = options.catalogue(parsed.path)
    site = options.site(_values(parsed), known)
    measurer = _measurer(parsed, known, site, arguments)
    knobs, rerun = _settings(parsed), shlex.join(["scaleproof", *arguments])
    if parsed.verb != "recover":  # there are no cases whose knobs would be checked
        knobs = known.checked([known.get("engines", site.engine)], knobs, parsed.verb)
    if parsed.verb == "pairs":
        exit_, document, lines = fabric.pairs(measurer, site, knobs, parsed.exclude)
    elif parsed.verb == "recover":
        cases = [known.normalise(site.case(name, knobs=knobs)) for name in parsed.cases]
        exit_, document, lines = fabric.recover(measurer, site, cases, parsed.trials, rerun)
    else:
        exit_, document, lines = fabric.fabric(measurer, site, knobs, parsed.sweeps, rerun)
    _emit(parsed, document, lines)
    return exit_


def _exit(run: RunRecord, inconclusive_fails: bool = True) -> Exit:
    return exit_status([v.counts for v in run.verdicts], inconclusive_fails=inconclusive_fails)


def _report(parsed: argparse.Namespace, _: list[str]) -> Exit:
    run = load(parsed.run)
    from harness.interface.report.html import render

    folder = parsed.run if parsed.run.is_dir() else parsed.run.parent
    page = folder / "report.html"
    lines = tables.summary(run, parsed.run, run.settings.get("argv", ""), text.columns())
    if parsed.every:
        lines += ["", *tables.verdict_lines(run, text.columns(), every=True)]
    with contextlib.suppress(PermissionError):
        write_text(page, render(run))
        lines.append(f" page     {page}")
    _emit(parsed, to_doc(run), lines)
    return Exit.PASSED


def _verify(parsed: argparse.Namespace, _: list[str]) -> Exit:
    run = load(parsed.run)
    folder = parsed.run if parsed.run.is_dir() else parsed.run.parent
    found = verify(run, folder)
    lines = [
        f" {found.num_launches} launches from {found.num_samples} ranks' samples,"
        f" {found.num_verdicts} verdicts recomputed",
        f" recorded with {run.software.get('scaleproof', 'n/a')}, read with schema {run.schema}",
        *(
            [f" {found.num_traceless} budgets are taken as recorded: their traces are not here"]
            if found.num_traceless
            else []
        ),
        *(f" DIFFERS  {d}" for d in found.differences),
        " everything agrees" if not found.differences else f" {len(found.differences)} differences",
    ]
    if parsed.thresholds is None or found.differences:
        _emit(parsed, to_doc(found), lines)
        return Exit.FAILED if found.differences else Exit.PASSED
    anew = rejudge(run, load_thresholds(parsed.thresholds))
    lines += ["", f" judged anew by {parsed.thresholds}:"]
    lines += [*tables.verdict_lines(anew, text.columns(), every=True), *tables.counts(anew)]
    _emit(parsed, {**to_doc(found), "judged_anew": to_doc(anew.verdicts)}, lines)
    return _exit(anew)


def _baseline(parsed: argparse.Namespace, _: list[str]) -> Exit:
    _emit(parsed, *baseline.act(parsed))
    return Exit.PASSED


def _timeline(parsed: argparse.Namespace, _: list[str]) -> Exit:
    _emit(parsed, *timeline.act(parsed, text.columns()))
    return Exit.PASSED


def _compare(parsed: argparse.Namespace, _: list[str]) -> Exit:
    a, b = load(parsed.a), load(parsed.b)
    hardware = parsed.verb == "compare-hardware"
    if hardware:
        found = compare.compare_hardware(a, b, parsed.metric)
    else:
        found = compare.compare(a, b, parsed.metric, force=parsed.force)
    _emit(parsed, to_doc(found), comparison.lines(a, b, found, text.columns()))
    return Exit.PASSED if any(r.ratio is not None for r in found.rows) else Exit.NOTHING_JUDGED


def _ingest(parsed: argparse.Namespace, _: list[str]) -> Exit:
    from harness.analysis.history import asv

    added = [x for run in parsed.runs for x in asv.ingest(load(run), parsed.results)]
    lines = [f" {asv.summary(x)}" for x in added]
    machines = sorted({x.machine for x in added})
    lines += ["", " next     asv publish && asv preview"]
    lines += [f" compare  asv compare main~1 main --machine {m}" for m in machines]
    _emit(parsed, to_doc(tuple(added)), lines)
    return Exit.PASSED if added else Exit.NOTHING_JUDGED


_VERBS: dict[str, Callable[[argparse.Namespace, list[str]], Exit]] = {
    "doctor": _doctor,
    "list": _list,
    "plan": _plan,
    "run": _run,
    "fabric": _network,
    "pairs": _network,
    "recover": _network,
    "status": _detached,
    "cancel": _detached,
    "collect": _detached,
    "join": lambda parsed, _: join.join(parsed),
    "report": _report,
    "verify": _verify,
    "timeline": _timeline,
    "baseline": _baseline,
    "compare": _compare,
    "compare-hardware": _compare,
    "ingest": _ingest,
}
