"""What every verb prints with ``--json``: its documents, as types."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from harness.analysis.choices.fitting import Attempt
from harness.analysis.choices.trials import Loss, Tried
from harness.analysis.claims import Finding as Claim
from harness.analysis.compare import Comparison
from harness.analysis.handover import Requirement, Seal
from harness.analysis.hardware import HardwareComparison
from harness.analysis.history.ingest import Ingested
from harness.analysis.history.trends import Turn
from harness.analysis.judging.expected import Reference
from harness.analysis.nodes import Drift, Examined
from harness.analysis.stacks import Activity
from harness.analysis.timeline.views.communications import Communication
from harness.analysis.timeline.views.difference import Change
from harness.analysis.timeline.views.idleness import Idleness
from harness.analysis.timeline.views.kernels import Kernel
from harness.analysis.timeline.views.tallies import Range
from harness.analysis.verify import Verification
from harness.cases import Threshold
from harness.host.admission import Finding
from harness.interface.cli.verbs.measure.compress import Confirmed
from harness.interface.cli.verbs.measure.detached import Detached
from harness.interface.nightly.notice import News
from harness.interface.report.plans import Outlook
from harness.interface.schema.foreseen import Allowed, Endured, Foretold
from harness.launch.engine import Command
from harness.measure.setups.interleaving import Difference
from harness.record import Budget, RunRecord, Verdict
from harness.record.archive import Packed
from harness.record.fabric import Suspects
from harness.record.signature import Signature

Software = Mapping[str, Mapping[str, str]]


#: Printed instead of an answer; ``try`` is what to do.
Error = TypedDict("Error", {"error": str, "where": str, "expected": str, "try": str})


class Advised(TypedDict):
    losses: Sequence[Loss]
    tried: Sequence[Tried]
    run: NotRequired[str]


class SeenRank(TypedDict):
    pid: int
    rank: int
    world_size: int
    cores: float
    activity: Activity | None


class Attached(TypedDict):
    ranks: Sequence[SeenRank]


class Audited(TypedDict):
    rows: Sequence[Claim]


class References(TypedDict):
    references: Sequence[Reference]


class Probe(TypedDict):
    version: str
    pairs: int
    longer: float


class Bisected(TypedDict):
    first_bad: str
    last_good: str
    sure: float
    longer: float
    launches: int
    plain: int
    probes: Sequence[Probe]
    run: str


class Cancelled(TypedDict):
    job: str


class Interleaved(TypedDict):
    cases: Sequence[Difference]
    setups: Software
    run: str


class Rates(TypedDict):
    rate: float | None
    low: float | None
    high: float | None


class CodecCost(TypedDict):
    name: str
    case: str
    step_s: float
    sent_bytes: float
    bytes_per_parameter: float
    encode_s: float | None
    decode_s: float | None
    loss: float | None
    pays: Mapping[str, Rates]
    exchange_s: float | None


class Compressed(TypedDict):
    link_bps: float | None
    costs: Sequence[CodecCost]
    confirmed: Sequence[Confirmed]
    run: str


class Completion(TypedDict):
    shell: str
    script: str


class Examination(TypedDict):
    checks: Sequence[Finding]
    facts: Mapping[str, str]


class Nodes(TypedDict):
    nodes: Sequence[Examined]
    drift: Sequence[Drift]


class Exported(TypedDict):
    file: str
    rows: int


class Fitted(TypedDict):
    case: str
    limit_bytes: float
    headroom: float
    micro_batch: int | None
    tried: Sequence[Attempt]


class HandedOver(TypedDict):
    status: str
    made_on: str
    requirements: Sequence[Requirement]
    stand_ins: Sequence[Requirement]
    beyond: Sequence[tuple[str, str]]
    exclude: Sequence[tuple[str, str]]
    drift: Sequence[Drift]
    seals: Sequence[Seal]
    archive: str
    sha256: str


class TrendOf(TypedDict):
    machine: str
    case: str
    figure: str
    unit: str
    status: str
    why: str
    changes: Sequence[Turn]
    nights: Sequence[Mapping[str, Any]]


class History(TypedDict):
    series: Sequence[TrendOf]


class Added(TypedDict):
    series: Sequence[Ingested]
    refused: Sequence[str]


class Files(TypedDict):
    files: Sequence[str]


class Named(TypedDict):
    name: str
    doc: str
    path: str
    head: Mapping[str, Any]


class Told(TypedDict):
    night: str
    exit: int
    headline: str
    counts: Mapping[str, int]
    news: Sequence[News]
    suspicious: Sequence[str]
    page: str


class Archive(TypedDict):
    archive: str
    sha256: str
    runs: Sequence[Packed]
    files: Mapping[str, str]


class Unpacked(TypedDict):
    folders: Sequence[str]
    runs: Sequence[Packed]
    files: Mapping[str, str]


class Plans(TypedDict):
    plans: Sequence[Outlook]


class Row(TypedDict):
    status: str
    case: str
    metric: str
    against: str
    value: float | None
    low: float | None
    high: float | None
    bound: str
    rule: str | None
    n: int
    reason: str
    reproducible: bool | None


class Summary(TypedDict):
    run: str
    started_at: str
    complete: bool
    machine: str
    headline: str
    exit: int
    decide: Sequence[str]
    foreseen: Sequence[str]
    verdicts: Sequence[Row]


class Judges(TypedDict):
    rule: Threshold
    judges: str


class Commands(TypedDict):
    commands: Sequence[Command]


class Job(TypedDict):
    job: str
    engine: str
    submitted_at: str
    argv: Sequence[str]
    log: str
    state: str
    reason: str
    said: Sequence[str]


class Jobs(TypedDict):
    jobs: Sequence[Job]


class Window(TypedDict):
    title: str
    budget: Budget
    doubt: str
    communications: NotRequired[Sequence[Communication]]
    kernels: NotRequired[Sequence[Kernel]]
    idleness: NotRequired[Sequence[Idleness]]
    ranges: NotRequired[Sequence[Range]]


class Windows(TypedDict):
    windows: Sequence[Window]


class Shifted(TypedDict):
    title: str
    terms: Sequence[Change]
    names: Sequence[Change]
    doubts: Sequence[str]


class Shifts(TypedDict):
    windows: Sequence[Shifted]


class Verified(TypedDict):
    """A Verification, and with ``--thresholds`` the verdicts under these rules."""

    num_launches: int
    num_samples: int
    num_verdicts: int
    differences: Sequence[str]
    num_traceless: int
    num_links: int
    head: str
    signer: str
    judged_anew: Sequence[Verdict]


class GateRow(TypedDict):
    check: str
    level: str
    told: str


class Gated(TypedDict):
    fit: str
    seconds: float
    late: str
    run: str
    checks: Sequence[GateRow]


class Script(TypedDict):
    script: str


#: Verb -> its documents: one, or one for each way in which it can be asked.
DOCUMENTS: Mapping[str, tuple[Any, ...]] = {
    "advise": (Advised,),
    "attach": (Attached,),
    "audit": (Audited,),
    "baseline": (References,),
    "bisect": (Bisected,),
    "cancel": (Cancelled,),
    "collect": (RunRecord,),
    "compare": (Comparison, Interleaved),
    "compare-hardware": (HardwareComparison,),
    "completion": (Completion,),
    "compress": (Compressed,),
    "doctor": (Examination, Nodes),
    "error": (Error,),
    "export": (Exported,),
    "fabric": (RunRecord,),
    "fit": (Fitted,),
    "gate": (Gated,),
    "goodput": (Endured,),
    "handover": (HandedOver,),
    "history": (History,),
    "ingest": (Added,),
    "init": (Files,),
    "list": (Mapping[str, Sequence[Named]],),
    "nightly": (Told,),
    "pack": (Archive,),
    "pairs": (Suspects,),
    "plan": (Plans,),
    "possible": (Allowed,),
    "predict": (Foretold,),
    "recover": (RunRecord,),
    "report": (RunRecord, Summary, Files),
    "rules": (Sequence[Judges],),
    "run": (RunRecord, Commands, Detached, Script),
    "sign": (Signature,),
    "status": (Jobs,),
    "timeline": (Windows, Shifts),
    "unpack": (Unpacked,),
    "verify": (Verification, Verified),
}
