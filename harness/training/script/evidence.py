"""Write the evidence of a watched rank: its record, or the reason why there is none."""

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from harness.analysis.script import facts
from harness.analysis.script.facts import LoopEvents
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
    loop = loop_of(watch)
    measured = measured_by(watch, loop.samples)
    began, ended = _replicas(watch)
    watched = watched_by(watch, loop, began, ended)
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


def measured_by(watch: Watch, samples: Samples) -> Measured:
    """Return the measurements of a finished watch, without its warm-up."""
    last = watch.edges()[-1]
    window_s = watch.marks_s[last] - watch.marks_s[watch.first]
    gloo = dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() == "gloo"
    return Measured(
        samples=samples,
        window_s=window_s,
        window_ns=(watch.walls_ns[last] - round(1e9 * window_s), watch.walls_ns[last]),
        misses=0,
        grown=watch.grown,
        counted=gloo,
        shared=(),
    )


def loop_of(watch: Watch) -> LoopEvents:
    """Return the events of the loop, from which facts follow."""
    edges = watch.edges()
    marks = np.array([watch.marks_s[i] for i in edges])
    step_s = np.diff(marks)
    if watch.events:
        at = [watch.events[i] for i in edges]
        step_s = np.array([a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(at)])
    main = _main(watch)
    spent = np.diff(np.array([watch.spent[i] for i in edges]), axis=0)
    apart, inside, begun = np.split(spent, [4, 7], axis=1)
    issued = collectives.issued(dist.get_backend()) if dist.is_initialized() else []
    operations = list(dict.fromkeys(name for name, _, _ in issued))
    numbered = [(operations.index(name), size, at_ns) for name, size, at_ns in issued]
    order = list(watch.hooks.roots)
    # A call that turned out to be the training loop itself is no pass of a model.
    passes_ns = [(order.index(key), *times) for key, *times in watch.forwards_ns if key in order]
    samples = Samples(
        marks_s=marks - marks[0],
        loss=watch.loss_of_steps(),
        sample_ids=np.zeros((watch.task.steps, 0), np.int64),
        rss_bytes=np.array([watch.rss_bytes[i] for i in edges[:-1]], np.int64),
        step_s=step_s,
        seen=padded([main.of(i, i + watch.period) for i in edges[:-1]]),
        came=np.array([main.came(i, i + watch.period) for i in edges[:-1]], np.int64),
        parts_s=np.column_stack([apart, np.diff(marks) - apart.sum(axis=1), inside]),
        begun=begun.astype(np.int64),
        cycles=_cycles(watch),
        rows=_rows_of_cycles(watch),
        edges_ns=np.array([watch.walls_ns[i] for i in edges], np.int64),
        issued=np.array(numbered, np.int64).reshape(-1, 3) if dist.is_initialized() else None,
        passes_ns=np.array(passes_ns, np.int64).reshape(-1, 3),
        changed=np.array([any(map(bool, update)) for update in watch.updates], np.int8),
    )
    loop = LoopEvents(samples=samples, cut=watch.task.cut, operations=operations)
    # A GPU computes gradients later than their collective is issued.
    late = watch.rank.accelerator.present
    ready_s = np.full(watch.task.steps, np.nan) if late else np.array(facts.ready_s(loop))
    return replace(loop, samples=replace(samples, ready_s=ready_s))


def _cycles(watch: Watch) -> np.ndarray:
    """Return ``Samples.cycles``: the columns ``facts.CYCLE``, with one row more than cycles."""
    edges = watch.edges()
    words = watch.sentences.words[edges[0] : edges[-1]]
    stepping = list(dict.fromkeys(word.optimizers for word in words))
    drawn = watch.drawn
    rows = [
        (stepping.index(word.optimizers), word.backwards, watch.ahead_s.get(i, 0.0),
         watch.evaluations[i], watch.reads[i] if i < len(watch.reads) else np.nan, drawn.get(i, 0))
        for i, word in enumerate(words, edges[0])
    ]  # fmt: skip
    rows.append((0, 0, 0.0, watch.evaluations[edges[-1]], np.nan, 0))
    return np.array(rows, np.float64)


def _rows_of_cycles(watch: Watch) -> np.ndarray:
    """Return ``Samples.rows``: rows and calls of each root in each cycle."""
    edges = watch.edges()
    cycles = range(edges[0], edges[-1])
    rows = [[of_root.came(i, i + 1) for i in cycles] for of_root in watch.rows.values()]
    calls = [[of_root.passes(i, i + 1) for i in cycles] for of_root in watch.rows.values()]
    return np.array([rows, calls], np.int64).reshape(2, len(watch.rows), len(cycles))


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


def watched_by(
    watch: Watch, loop: LoopEvents, began: Digests, ended: Digests
) -> ScriptObservations:
    """Return the observations of the hooks, and the facts that follow from the events."""
    edges = watch.edges()
    words = watch.sentences.words[watch.first : watch.first + watch.period]
    classes = {key: _kind(optimizer) for key, optimizer in watch.hooks.optimizers.items()}
    roots = list(watch.hooks.roots.values())
    parallel = shards.shares_data(watch.hooks.wrapped)
    grouped = dist.is_initialized()
    known = facts.facts(loop, parallel=parallel, sharded=watch.sharded)
    first = sum(int(v) for rows in watch.rows.values() for v in rows.of(0, 1).tolist())
    trained = [p for p in watch.parameters() if p.requires_grad or id(p) in watch.graded]
    trained_bytes = shards.bytes_of(roots, trained)
    work = watch.work if _is_usual(watch, edges[-1]) else None
    return ScriptObservations(
        world_size=dist.get_world_size() if grouped else 1,
        backend=dist.get_backend() if grouped else "",
        optimizers=tuple(
            "+".join(sorted(classes[key] for key in word.optimizers)) for word in words
        ),
        roots=_rows_of_roots(watch),
        start=began.whole,
        began=_short(began.parts),
        ended=_short(ended.parts),
        sums_before=began.sums,
        sums_after=ended.sums,
        rates=_numbers(watch.rates()),
        exchanging=_exchanging(watch, loop),
        first=f"{first % 2**64:016x}",
        parameter_bytes=shards.bytes_of(roots, watch.parameters()),
        small=_small(watch, loop, known.get("collectives", {}), trained),
        operations=tuple(loop.operations),
        repeated=watch.hooks.loaders.repeated,
        seeded=bool(watch.hooks.seed),
        seed=watch.hooks.seed,
        flops=0.0 if work is None else work.flops,
        aside=0.0 if work is None else work.aside,
        ragged=any(rows.ragged for rows in watch.rows.values()),
        saved=tuple(sorted(watch.hooks.saved)[:FILES]),
        whole=watch.hooks.loaders.whole,
        stored=watch.hooks.loaders.stored,
        sampler=watch.hooks.loaders.sampler,
        unclear=watch.unclear,
        in_eval=watch.hooks.in_eval,
        searched=watch.searched,
        random=watch.random,
        parallel=parallel,
        loose=tuple(digest(iter([parameter]))[:SHORT] for parameter in watch.loose.values()),
        trained_bytes=trained_bytes,
        workers=watch.hooks.loaders.workers,
        cleared=bool(watch.cleared),
        uncleared=watch.uncleared and len(watch.hooks.optimizers) == 1,
        twice=watch.sentences.twice > 0,
        unstepped=tuple(watch.unstepped()[:FILES]),
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
        rates_at=tuple(map(_numbers, watch.rates_at)),
        mean_targets=watch.hooks.means.targets(),
        clipped_norms=watch.hooks.means.norms(),
        clipped_scaled=watch.hooks.means.clipped_scaled,
        graphs_kept=watch.hooks.means.graphs_kept(),
        without_gradient=watch.hooks.calls.without_gradient,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        replaced=shards.replaced(watch.hooks.wrapped),
        same_passes=watch.hooks.loaders.same_passes,
        **{"collectives": {}, "even": True, "sharded": watch.sharded, **known},
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
    rates = _numbers(watch.rates())
    parts = [tensor_values.local(parameter) for parameter in watch.parameters()]
    if not any(part.numel() for part in parts) or (rates and not any(rates)):
        return False
    of_roots = watch.bits().whole
    reached = any(id(parameter) in watch.graded for parameter in watch.parameters())
    if reached and of_roots and watch.began.whole == of_roots:
        return True
    return bool(ended.whole) and began.whole == ended.whole


def _exchanging(watch: Watch, loop: LoopEvents) -> tuple[str, ...]:
    """Return the root modules that exchange more than single values in their forward passes.

    Such roots may be parts of one layer that is divided among ranks (Partial FC). Roots with
    DistributedDataParallel or SyncBatchNorm are left out, because these exchange only buffers and
    statistics in forward passes.
    """
    names = inside.heads(list(watch.hooks.roots.values()))
    exchanging = []
    for name, (key, root) in zip(names, watch.hooks.roots.items(), strict=True):
        spans_ns = [(begin, end) for of_root, begin, end in watch.forwards_ns if of_root == key]
        parts = [*inside.modules(root)]
        replicated = (nn.parallel.DistributedDataParallel, nn.SyncBatchNorm)
        if any(isinstance(module, replicated) for module in parts):
            continue
        if sum(size for kind, size in loop.issued(spans_ns) if kind != "broadcast") > facts.LARGE:
            exchanging.append(name)
    return tuple(exchanging)


def _numbers(rates: Sequence[float | torch.Tensor]) -> tuple[float, ...]:
    """Return learning rates as numbers."""
    return tuple(map(float, rates))


def _small(
    watch: Watch,
    loop: LoopEvents,
    issued: Mapping[str, CollectiveCount],
    trained: Sequence[nn.Parameter],
) -> int:
    """Return the number of small collectives that carry no gradients.

    Three kinds of small collectives are subtracted. A script may reduce the gradients of small
    parameters one by one. DDP reduces a map of the used parameters if it searches for unused ones.
    Collectives of objects exchange sizes.
    """
    wrapped = watch.hooks.wrapped
    searches = sum(bool(getattr(root, "find_unused_parameters", False)) for root in wrapped)
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    if loop.samples.issued is None or sum(sizes) <= facts.SMALL:
        return 0
    # A collective of objects first exchanges their sizes.
    objects = sum(call.count for name, call in watch.calls.items() if "object" in name)
    small = facts.small(loop) - searches - round(objects)
    one_by_one = sum(kind.count for kind in issued.values()) >= len(trained)
    if one_by_one:
        small -= sum(size <= facts.SMALL for size in sizes)
    return max(0, small)


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


def _rows_of_steps(watch: Watch) -> list[int]:
    main = _main(watch)
    return [main.came(i, i + watch.period) for i in watch.edges()[watch.task.cut : -1]]


def _is_usual(watch: Watch, begin: int) -> bool:
    """Return whether the step from cycle ``begin`` on has about the median number of rows."""
    usual = float(np.median(_rows_of_steps(watch)))
    return abs(_main(watch).came(begin, begin + watch.period) - usual) <= FEW * usual


def _short(parts: Mapping[str, str]) -> tuple[str, ...]:
    """Return shortened digests, which suffice to show where ranks differ.

    Short digests save space, because all ranks of all launches record them.
    """
    return tuple(bits[:SHORT] for bits in parts.values())


def _kind(optimizer: Optimizer) -> str:
    """Return an optimizer's class, with its implementation if that is "fused" or "foreach"."""
    ways = [way for way in ("fused", "foreach") if optimizer.defaults.get(way)]
    return type(optimizer).__name__ + (f" ({', '.join(ways)})" if ways else "")


def _name(module: nn.Module) -> str:
    """Return the name of a module's class, with the class of the module that it wraps."""
    # Do not use a compiled module as a condition: that calls ``len`` of the wrapped module.
    inner = getattr(module, "module", getattr(module, "_orig_mod", None))
    name = type(module).__name__
    return f"{name}({type(inner).__name__})" if isinstance(inner, nn.Module) else name
