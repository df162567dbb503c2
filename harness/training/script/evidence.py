"""Write the evidence of a watched rank: its record, or the reason why there is none."""

import hashlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from harness.base.documents import to_doc
from harness.base.errors import LaunchError
from harness.cases import Fault
from harness.cases.script import ScriptCommand
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.record import CollectiveCount, ExecutedModel, RankRecord, ScriptObservations
from harness.record.store import Samples, write_text
from harness.training.accelerator import Accelerator
from harness.training.observe import collectives, kernel_counters, tensor_values
from harness.training.observe.intake import digest, padded
from harness.training.rank.joining import Barrier
from harness.training.rank.setup import Rank, RankPlace, StartupTimes, device_of
from harness.training.rank.window import Measured
from harness.training.script import inside, process, shards, workplace
from harness.training.script.journal import Journal
from harness.training.script.observed import Digests, Observed
from harness.training.script.prepared import Preparation
from harness.training.script.region import region
from harness.training.script.samples import Rows
from harness.training.script.spawning import refuse_spawning
from harness.training.script.watch import Watch

#: A step is unusual if its number of rows differs from the median by more than this fraction.
FEW = 0.02
#: Largest number of file names in a record, and of names of parts that no optimizer steps.
FILES = 8
#: Number of characters of a part's digest that a record stores.
SHORT = 6


def rank_of(spec: LaunchSpec, place: RankPlace, beats: Beats, store: dist.Store) -> Rank:
    """Return the ``Rank`` of a script. The script itself sets up its process group and device."""
    accelerator = Accelerator(device_of(spec.case, place))
    if not accelerator.present:
        accelerator.select()  # hides the GPUs; on a GPU the script selects the device
    return Rank(
        spec=spec,
        place=place,
        out=Path(spec.out),
        accelerator=accelerator,
        meet=Barrier(store, place.rank, place.world_size, communicate=False),
        lap=StartupTimes(),
        tuned_threads=0,
        known_modules=frozenset(sys.modules),
        shared=kernel_counters.shared_memory(),
        beats=beats,
    )


def begin(
    rank: Rank,
    command: ScriptCommand,
    way: str,
    leave: Callable[[], NoReturn],
    prepared: Preparation | None = None,
) -> Observed:
    """Start watching this process.

    ``prepared`` holds the loaders and optimizers seen so far. ``leave`` ends the process after the
    window, or after the last update of a ``Break`` task.
    """

    def over(watch: Watch) -> None:
        _record(watch, rank, command, way)
        leave()

    def done(journal: Journal) -> None:
        _close(journal)
        leave()

    task = rank.spec.task
    assert isinstance(task, Break | Script)
    watch = Watch(task, rank, over) if isinstance(task, Script) else Journal(task, rank, done)
    watch.hooks.install(prepared)
    collectives.position = watch.hooks.loaders.position
    if way != "launcher":
        refuse_spawning(rank.spec.case.script)
    region.watches.append(watch)
    return watch


def ended(watch: Observed, spec: LaunchSpec, leave: Callable[[], NoReturn]) -> None:
    """Handle a script that ended on its own. Raise LaunchError if it ended too early."""
    finish_measured(watch)
    broken = isinstance(watch, Journal) and watch.task.fault is not Fault.NONE
    if isinstance(watch, Journal) and not broken and watch.sentences.begun:
        watch.passing()
        _close(watch)
        leave()
    log = watch.rank.file("log") if isinstance(watch, Watch | Journal) else None
    raise ended_early(watch, spec, process.last_line(log) if log and log.is_file() else "")


def finish_measured(watch: Observed) -> None:
    """End the process if the window was measured, because later events do not matter."""
    if isinstance(watch, Watch) and watch.measured:
        watch.finish()


def _close(journal: Journal) -> None:
    """Wait for all ranks, and write the result of a training that was not interrupted."""
    rank = journal.rank
    rank.meet()
    write_text(rank.file("json"), json.dumps({"updates": len(journal.sentences.words)}))
    rank.meet.part()
    rank.beat(Phase.DONE)


def _record(watch: Watch, rank: Rank, command: ScriptCommand, way: str) -> None:
    """Write the record of this rank, and pass the launch's last barrier."""
    source = process.source(command, workplace.of(rank.spec, rank.place.node))
    write_text(rank.file("json"), json.dumps(to_doc(document_of(watch, rank, source, way))))
    rank.meet.part()
    rank.beat(Phase.DONE)


def document_of(watch: Watch, rank: Rank, source: str, way: str) -> RankRecord:
    """Return the record of a rank whose window has ended, and write its samples to a file."""
    measured = measured_by(watch)
    began, ended = _replicas(watch)
    watched = watched_by(watch, began, ended)
    traced = {} if watch.profile is None else watch.profile.end(rank.out)
    return rank.record(
        ran_by(watch),
        watch.memory,
        measured,
        watched=replace(
            watched,
            source=source,
            way=way,
            modules=() if rank.place.local_rank else tuple(began.parts),
        ),
        grad_norm=watch.grad_norm,
        replica="" if watch.sharded else ended.whole,
        **traced,
    )


def ended_early(watch: Observed, spec: LaunchSpec, last_words: str = "") -> LaunchError:
    """Return the error for a script that ended too early.

    ``last_words`` is the last line of its output.
    """
    done = watch.sentences.done
    period = watch.sentences.period(len(watch.hooks.optimizers))
    if not watch.hooks.optimizers:
        what = "the script ended without making an optimizer of torch"
    elif done < 2 and watch.sentences.alone:
        what = "the script ended, and its optimizers stepped without a backward pass"
    elif done < 2:
        what = "the script ended before an optimizer had stepped twice"
    elif isinstance(spec.task, Break):
        what = f"the script ended after {done} updates, before the fault was injected"
    elif period is None:
        what = f"the script ended after {done} updates without a repeating period of steps"
    else:
        assert isinstance(spec.task, Script)
        what = f"the script ended after {done // period} of the {spec.task.steps + 1} steps wanted"
    quoted = f" (it said: {last_words[: process.QUOTED]})" if last_words and done < 2 else ""
    return LaunchError(
        what + quoted,
        where=spec.case.script,
        expected="a training that lasts longer than the window",
        fix="train for more epochs, on more data, or with a smaller batch",
    )


def measured_by(watch: Watch) -> Measured:
    """Return the measurements of a finished watch, without its warm-up."""
    last = watch.edges()[-1]
    window_s = watch.marks_s[last] - watch.marks_s[watch.first]
    gloo = dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() == "gloo"
    return Measured(
        samples=_samples(watch),
        window_s=window_s,
        window_ns=(watch.walls_ns[last] - round(1e9 * window_s), watch.walls_ns[last]),
        misses=0,
        grown=watch.grown,
        counted=gloo,
        shared=(),
    )


def _samples(watch: Watch) -> Samples:
    edges = watch.edges()
    marks = np.array([watch.marks_s[i] for i in edges])
    step_s = np.diff(marks)
    if watch.events:
        at = [watch.events[i] for i in edges]
        step_s = np.array([a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(at)])
    main = _main(watch)
    spent = np.diff(np.array([watch.spent[i] for i in edges]), axis=0)
    apart, inside, begun = np.split(spent, [4, 7], axis=1)
    return Samples(
        marks_s=marks - marks[0],
        loss=watch.loss_of_steps(),
        sample_ids=np.zeros((watch.task.steps, 0), np.int64),
        rss_bytes=np.array([watch.rss_bytes[i] for i in edges[:-1]], np.int64),
        step_s=step_s,
        seen=padded([main.of(i, i + watch.period) for i in edges[:-1]]),
        came=np.array([main.came(i, i + watch.period) for i in edges[:-1]], np.int64),
        parts_s=np.column_stack([apart, np.diff(marks) - apart.sum(axis=1), inside]),
        begun=begun.astype(np.int64),
        ready_s=_ready_s(watch),
    )


def _ready_s(watch: Watch) -> np.ndarray:
    """Return the wall clock time at which the last gradients of each step were complete.

    It is the time at which the step's last large collective was issued. It is NaN if there is none,
    or if the device is a GPU, which computes the gradients later.
    """
    edges_ns = [watch.walls_ns[i] for i in watch.edges()]
    if not dist.is_initialized() or watch.rank.accelerator.present:
        return np.full(len(edges_ns) - 1, np.nan)
    return np.array(collectives.last_issued_s(dist.get_backend(), edges_ns))


def ran_by(watch: Watch) -> ExecutedModel:
    """Return the class of the first root module, and the dtype of its output."""
    roots = tuple(watch.hooks.roots.values())
    return ExecutedModel(module=_name(roots[0]) if roots else "", compute_dtype=watch.dtype)


def _replicas(watch: Watch) -> tuple[Digests, Digests]:
    """Return digests of the trained parameters before the first step and now.

    Optimizers may step tensors that belong to no root module. If the roots' parameters change
    nevertheless, the stepped tensors are copies (a shard, or a master copy in fp32). The digests
    are then computed from the roots. Otherwise they are computed from the stepped tensors
    (``torch.func``, plain tensors).
    """
    shards.reshard(list(watch.hooks.roots.values()))
    ended = watch.bits()
    alone = watch.bits_alone()
    if alone.whole and watch.began.whole == ended.whole:
        return watch.began_alone, alone
    return watch.began, ended


def watched_by(watch: Watch, began: Digests, ended: Digests) -> ScriptObservations:
    """Return the observations of the hooks, with the collectives of the last step."""
    edges = watch.edges()
    last = edges[-2], edges[-1]
    words_kept = watch.sentences.words[watch.first : edges[-1]]
    steps = [words_kept[i : i + watch.period] for i in range(0, len(words_kept), watch.period)]
    backwards = [sum(word.backwards for word in step) for step in steps]
    ((_, num_usual),) = Counter(backwards).most_common(1)
    classes = {key: _kind(optimizer) for key, optimizer in watch.hooks.optimizers.items()}
    roots = list(watch.hooks.roots.values())
    parallel = shards.shares_data(watch.hooks.wrapped)
    grouped = dist.is_initialized()
    exchanged = _exchanged(watch) if grouped else Exchanged()
    cut = exchanged.in_forwards > collectives.LARGE and not parallel and not watch.sharded
    first = sum(int(v) for rows in watch.rows.values() for v in rows.of(0, 1).tolist())
    trained = [p for p in watch.parameters() if p.requires_grad or id(p) in watch.graded]
    trained_bytes = shards.bytes_of(roots, trained)
    work = watch.work if _is_usual(watch, edges[-1]) else None
    return ScriptObservations(
        world_size=dist.get_world_size() if grouped else 1,
        backend=dist.get_backend() if grouped else "",
        optimizers=tuple(
            "+".join(sorted(classes[key] for key in word.optimizers)) for word in steps[0]
        ),
        backwards=backwards[-1],
        regular=len({tuple(word.optimizers for word in step) for step in steps}) == 1,
        unusual=len(steps) - num_usual,
        passes=hashlib.sha256(str(backwards).encode()).hexdigest()[:16],
        even=exchanged.even,
        roots=_rows_of_roots(watch),
        start=began.whole,
        began=_short(began.parts),
        ended=_short(ended.parts),
        sums_before=began.sums,
        sums_after=ended.sums,
        rates=_rates(watch),
        exchanging=_exchanging(watch) if grouped else (),
        first=f"{first % 2**64:016x}",
        sharded=watch.sharded or cut,
        cut=cut,
        parameter_bytes=shards.bytes_of(roots, watch.parameters()),
        collectives=exchanged.collectives,
        small=_small(watch, exchanged, trained),
        reads=_reads(watch),
        repeated=watch.hooks.loaders.repeated,
        seeded=bool(watch.hooks.seed),
        seed=watch.hooks.seed,
        flops=0.0 if work is None else work.flops,
        aside=0.0 if work is None else work.aside,
        ragged=any(rows.ragged for rows in watch.rows.values()),
        distinct=_distinct(watch),
        drawn=_drawn(watch),
        as_drawn=bool(_as_drawn(watch)),
        usual=_usual(watch),
        spread=_spread(watch),
        skips=_skips(watch),
        saved=tuple(sorted(watch.hooks.saved)[:FILES]),
        whole=watch.hooks.loaders.whole,
        stored=watch.hooks.loaders.stored,
        sampler=watch.hooks.loaders.sampler,
        unclear=watch.unclear,
        evaluations=watch.evaluations[last[1]] - watch.evaluations[watch.first],
        acted=watch.evaluations[watch.first],
        silent=exchanged.silent,
        in_eval=watch.hooks.in_eval,
        searched=watch.searched,
        random=watch.random,
        parallel=parallel,
        ahead_s=_of_a_step(watch, watch.ahead_s),
        bursts_s=_bursts_s(watch),
        loose=tuple(digest(iter([parameter]))[:SHORT] for parameter in watch.loose.values()),
        trained_bytes=trained_bytes,
        workers=watch.hooks.loaders.workers,
        again=_again(watch),
        idle=_idle(watch),
        cleared=bool(watch.cleared),
        uncleared=watch.uncleared and len(watch.hooks.optimizers) == 1,
        twice=watch.sentences.twice > 0,
        unstepped=tuple(watch.unstepped()[:FILES]),
        reduced=exchanged.reduced,
        unchanged=_unchanged(watch, began, ended),
        calls=watch.calls,
        threads=torch.get_num_threads(),
        cores=len(os.sched_getaffinity(0)),
        statistics=tuple(inside.with_statistics(roots)[:FILES]),
        broadcast=any(map(_broadcasts, watch.hooks.wrapped)),
        buffers=digest(inside.buffers(roots)),
        pass_batches=0 if (position := watch.hooks.loaders.position()) is None else position.length,
        settings=tuple(map(_settings, watch.hooks.optimizers.values())),
        modes=tuple(sorted(watch.modes)),
        num_updates=len(watch.sentences.words),
        mean_targets=watch.hooks.means.targets(),
        clipped_norms=watch.hooks.means.norms(),
        clipped_scaled=watch.hooks.means.clipped_scaled,
        graphs_kept=watch.hooks.means.graphs_kept(),
        without_gradient=watch.hooks.calls.without_gradient,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        replaced=shards.replaced(watch.hooks.wrapped),
        same_passes=watch.hooks.loaders.same_passes,
    )


def _broadcasts(wrapper: nn.Module) -> bool:
    """Return whether DistributedDataParallel copies rank 0's buffers before each forward pass."""
    return bool(getattr(wrapper, "broadcast_buffers", False))


def _settings(optimizer: Optimizer) -> str:
    """Return the settings with which an optimizer was made, as text."""
    numbers = {
        name: value
        for name, value in sorted(optimizer.defaults.items())
        if isinstance(value, float | int | tuple) and not isinstance(value, bool)
    }
    return " ".join([_kind(optimizer), *(f"{name}={value}" for name, value in numbers.items())])


def _unchanged(watch: Watch, began: Digests, ended: Digests) -> bool:
    """Return whether the trained parameters are bitwise equal before the first step and at the end.

    If backward passes reach the parameters of a root module, these parameters have to change. An
    optimizer that updates copies of the parameters, but never writes them back to the module,
    trains nothing. The result is False for a rank without a part of a sharded model, and if all
    learning rates are 0.
    """
    rates = _rates(watch)
    parts = [tensor_values.local(parameter) for parameter in watch.parameters()]
    if not any(part.numel() for part in parts) or (rates and not any(rates)):
        return False
    of_roots = watch.bits().whole
    reached = any(id(parameter) in watch.graded for parameter in watch.parameters())
    if reached and of_roots and watch.began.whole == of_roots:
        return True
    return bool(ended.whole) and began.whole == ended.whole


def _exchanging(watch: Watch) -> tuple[str, ...]:
    """Return the root modules that exchange more than single values in their forward passes.

    Such roots may be parts of one layer that is divided among ranks (Partial FC). Roots with
    DistributedDataParallel or SyncBatchNorm are left out, because these exchange only buffers and
    statistics in forward passes.
    """
    backend = dist.get_backend()
    names = inside.heads(list(watch.hooks.roots.values()))
    exchanging = []
    for name, (key, root) in zip(names, watch.hooks.roots.items(), strict=True):
        spans_ns = [(begin, end) for of_root, begin, end in watch.forwards_ns if of_root == key]
        parts = [*inside.modules(root)]
        replicated = (nn.parallel.DistributedDataParallel, nn.SyncBatchNorm)
        if any(isinstance(module, replicated) for module in parts):
            continue
        if collectives.within(backend, spans_ns) > collectives.LARGE:
            exchanging.append(name)
    return tuple(exchanging)


def _rates(watch: Watch) -> tuple[float, ...]:
    """Return the learning rates of all parameter groups after the last step."""
    groups = (g for optimizer in watch.hooks.optimizers.values() for g in optimizer.param_groups)
    return tuple(float(group["lr"]) for group in groups if "lr" in group)


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """The collectives of the last step, and the bytes that steps exchange.

    ``small`` is the number of collectives in the last step that carry few values. ``in_forwards``
    is the number of bytes that the last forward passes exchanged. ``reduced`` is the number of
    bytes that forward passes of the last step all-reduced. ``even`` is True if all steps exchanged
    the same number of bytes. ``silent`` is the number of steps that exchanged nothing although
    other steps did.
    """

    collectives: dict[str, CollectiveCount] = field(default_factory=dict)
    small: int = 0
    in_forwards: int = 0
    reduced: int = 0
    even: bool = True
    silent: int = 0


def _small(watch: Watch, exchanged: Exchanged, trained: Sequence[nn.Parameter]) -> int:
    """Return the number of small collectives that carry no gradients.

    Three kinds of small collectives are subtracted. A script may reduce the gradients of small
    parameters one by one. DDP reduces a map of the used parameters if it searches for unused ones.
    Collectives of objects exchange sizes.
    """
    wrapped = watch.hooks.wrapped
    searches = sum(bool(getattr(root, "find_unused_parameters", False)) for root in wrapped)
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    if sum(sizes) <= collectives.SMALL:
        return 0
    # A collective of objects first exchanges their sizes.
    objects = sum(call.count for name, call in watch.calls.items() if "object" in name)
    small = exchanged.small - searches - round(objects)
    one_by_one = sum(kind.count for kind in exchanged.collectives.values()) >= len(trained)
    if one_by_one:
        small -= sum(size <= collectives.SMALL for size in sizes)
    return max(0, small)


def _exchanged(watch: Watch) -> Exchanged:
    backend = dist.get_backend()
    edges_ns = [watch.walls_ns[i] for i in watch.edges()[watch.task.cut :]]
    last_ns = edges_ns[-2], edges_ns[-1]
    forwards_ns = [(begin, end) for _, begin, end in watch.forwards_ns]
    passes_ns = [times for times in forwards_ns if last_ns[0] <= times[0] < last_ns[1]]
    sent_bytes = collectives.exchanged(backend, edges_ns)
    return Exchanged(
        collectives=dict(collectives.between(backend, *last_ns)),
        small=collectives.small(backend, *last_ns),
        in_forwards=collectives.within(backend, forwards_ns),
        reduced=collectives.within(backend, passes_ns, only="all_reduce"),
        even=len(set(sent_bytes)) <= 1,
        silent=sent_bytes.count(0) if any(sent_bytes) else 0,
    )


def _rows_of_roots(watch: Watch) -> dict[str, int]:
    """Return how many rows reached each root module in the last step.

    Only roots that were called in the window are included, or all roots if none was called.
    """
    edges = watch.edges()
    window = edges[watch.task.cut], edges[-1]
    order = list(watch.hooks.roots)
    of_roots = {key: rows for key, rows in watch.rows.items() if key in order}
    called = {key: rows for key, rows in of_roots.items() if rows.came(*window)} or of_roots
    return {
        f"{order.index(key)}:{_name(watch.hooks.roots[key])}": rows.came(*edges[-2:])
        for key, rows in called.items()
    }


def _main(watch: Watch) -> Rows:
    """Return the rows of the root module that receives most rows.

    A model may have been called before it was wrapped, so several roots can be the same model.
    """
    edges = watch.edges()
    return max(watch.rows.values(), key=lambda r: r.came(edges[0], edges[-1]), default=Rows())


def _drawn(watch: Watch) -> float:
    """Return the number of samples that loaders hand out for a median step."""
    return float(np.median(_as_drawn(watch) or _of_steps(watch, watch.drawn)))


def _as_drawn(watch: Watch) -> list[float]:
    """Return the loaders' samples of those steps in which the model got all samples as rows.

    The list is empty unless it contains more than a quarter of the steps. A script may skip a
    batch, so not all steps have to be in the list.
    """
    drawn = _of_steps(watch, watch.drawn)
    pairs = zip(drawn, _rows_of_steps(watch), strict=True)
    alike = [size for size, rows in pairs if size == rows > 0]
    return alike if len(alike) > len(drawn) / 4 else []


def _usual(watch: Watch) -> float:
    """Return the median number of rows of a step divided by the mean number.

    They differ if the last batch of an epoch is short, for example.
    """
    rows = _rows_of_steps(watch)
    return float(np.median(rows) / np.mean(rows)) if any(rows) else 1.0


def _spread(watch: Watch) -> float:
    """Return the standard deviation of the number of rows of a step, relative to the mean."""
    rows = _rows_of_steps(watch)
    return float(np.std(rows) / np.mean(rows)) if any(rows) else 0.0


def _rows_of_steps(watch: Watch) -> list[int]:
    main = _main(watch)
    return [main.came(i, i + watch.period) for i in watch.edges()[watch.task.cut : -1]]


def _skips(watch: Watch) -> bool:
    """Return whether some steps of the window have more forward passes than others.

    If loaders hand out batches, only passes with additional batches count, because a model may
    sometimes call a part of itself twice.
    """
    main = _main(watch)
    begins = watch.edges()[watch.task.cut : -1]
    rows = _rows_of_steps(watch)
    drawn = _of_steps(watch, watch.drawn)
    of_sample = {row / size for row, size in zip(rows, drawn, strict=True) if size}
    return len({main.passes(i, i + watch.period) for i in begins}) > 1 and len(of_sample) <= 1


def _is_usual(watch: Watch, begin: int) -> bool:
    """Return whether the step from cycle ``begin`` on has about the median number of rows."""
    usual = float(np.median(_rows_of_steps(watch)))
    return abs(_main(watch).came(begin, begin + watch.period) - usual) <= FEW * usual


def _reads(watch: Watch) -> float:
    """Return the number of single values that a median warm-up step reads.

    Reads after the warm-up are not counted.
    """
    counts = [watch.reads[i] for i in watch.edges()[: watch.task.cut + 1]]
    return float(np.median(np.diff(counts))) if len(counts) > 1 else 0.0


def _of_a_step(watch: Watch, by_sentence: Mapping[int, float]) -> float:
    """Return the median over steps of the window of a quantity that each update cycle has.

    The quantity, for example seconds, is added up over the update cycles of each step.
    """
    steps = _of_steps(watch, by_sentence)
    return float(np.median(steps)) if steps else 0.0


def _of_steps(watch: Watch, by_sentence: Mapping[int, float]) -> list[float]:
    """Return, for each step of the window, the sum of a quantity over its update cycles."""
    edges = watch.edges()[watch.task.cut :]
    return [
        sum(by_sentence.get(i, 0) for i in range(begin, end))
        for begin, end in itertools.pairwise(edges)
    ]


def _bursts_s(watch: Watch) -> float:
    """Return the mean minus the median of the seconds that steps take before backward passes."""
    steps = _of_steps(watch, watch.ahead_s)
    return max(0.0, float(np.mean(steps) - np.median(steps))) if steps else 0.0


def _short(parts: Mapping[str, str]) -> tuple[str, ...]:
    """Return shortened digests, which suffice to show where ranks differ.

    Short digests save space, because all ranks of all launches record them.
    """
    return tuple(bits[:SHORT] for bits in parts.values())


def _distinct(watch: Watch) -> float:
    """Return the fraction of hashed rows in a step that are distinct, averaged over steps."""
    main = _main(watch)
    shares = [
        len(np.unique(rows)) / len(rows)
        for i in watch.edges()[:-1]
        if len(rows := main.of(i, i + watch.period))
    ]
    return float(np.mean(shares)) if shares else 1.0


def _kind(optimizer: Optimizer) -> str:
    """Return an optimizer's class, with its implementation if that is "fused" or "foreach"."""
    ways = [way for way in ("fused", "foreach") if optimizer.defaults.get(way)]
    return type(optimizer).__name__ + (f" ({', '.join(ways)})" if ways else "")


def _again(watch: Watch) -> float:
    """Return the mean fraction of a warm-up step's rows that the previous step also had."""
    main = _main(watch)
    steps = [main.of(i, i + watch.period) for i in watch.edges()[: watch.task.cut + 1]]
    pairs = [pair for pair in itertools.pairwise(steps) if len(pair[0]) and len(pair[1])]
    return float(np.mean([np.isin(b, a).mean() for a, b in pairs])) if pairs else 0.0


def _idle(watch: Watch) -> float:
    """Return the fraction of the inspected updates that left all inspected elements unchanged."""
    idle = [not any(bool(changed) for changed in update) for update in watch.updates]
    return float(np.mean(idle)) if idle else 0.0


def _name(module: nn.Module) -> str:
    """Return the name of a module's class, with the class of the module that it wraps."""
    # Do not use a compiled module as a condition: that calls ``len`` of the wrapped module.
    inner = getattr(module, "module", getattr(module, "_orig_mod", None))
    name = type(module).__name__
    return f"{name}({type(inner).__name__})" if isinstance(inner, nn.Module) else name
