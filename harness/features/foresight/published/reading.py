"""Read the fields of a table's points, under any of their usual names, as a Shape and a Fabric."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.physics.schedules import PipelineSchedule, schedule_of
from harness.features.foresight.published.measures import is_measure
from harness.features.foresight.shapes import KeptStates, Model, Shape
from harness.host import devices

#: Names of each number in papers, configurations and logs. The first one that a row has counts.
NUMBERS: dict[str, tuple[str, ...]] = {
    "ranks": ("n", "num_gpus", "gpus", "n_gpus", "world_size", "devices", "ranks", "num_devices"),
    "nodes": ("nodes", "num_nodes"),
    "tensor": ("tp", "tensor_parallel_size", "t"),
    "stages": ("pp", "pipeline_parallel", "pipeline_parallel_size", "stages"),
    "context": ("cp", "context_parallel_size"),
    "data": ("dp", "data_parallel", "data_parallel_size"),
    "chunks": ("v", "interleave", "virtual_stages", "vpp", "chunks"),
    "micro_batch": (
        "mbs", "micro_batch", "microbatch", "micro_batch_size", "microbatch_size",
        "batch_per_gpu", "local_batch", "local_batch_size", "max_batch", "batch_size_per_gpu",
    ),
    "micros": ("microbatches", "num_microbatches", "micro_batches", "m"),
    "accumulated": ("grad_accum", "gradient_accumulation", "accum", "grad_accum_steps"),
    "global_batch": ("global_batch", "global_batch_size", "gbs", "batch", "batch_size"),
    "replica_batch": ("batch_per_dp", "batch_per_replica"),
    "global_tokens": ("tokens_per_batch", "global_tokens", "batch_tokens"),
    "seq": ("seq", "seq_len", "sequence_length", "seqlen", "context_length"),
    "params": ("params", "parameters", "num_params"),
    "trains": ("trainable_params", "trainable", "trained_params"),
    "layers": ("layers", "num_layers"),
    "hidden": ("hidden", "hidden_size", "d_model"),
    "keys": ("kv_hidden", "kv_dim"),
    "zero": ("zero", "zero_stage"),
}  # fmt: skip
#: Limits that no training run exceeds, so that a typing error is not simulated.
MOST_OF = {"stages": 1024, "chunks": 128, "layers": 10_000}
#: Fields that must be equal for one point to predict another.
CONFIGURATION = (
    "strategy", "optimizer", "precision", "dtype", "gpu", "software", "framework", "version",
    "container", "image", "stack", "round", "release", "commit", "clocks", "driver", "nccl",
    "cuda", "rocm", "sp", "act_ckpt", "activation_checkpointing", "compile", "kernel", "attention",
    "torch", "pytorch", "fabric", "network", "interconnect", "nic", "ep",
    "expert_parallel_size", "variant", "sweep",
)  # fmt: skip
#: Fields that state the origin of a figure or follow from others. They are ignored.
PROVENANCE = (
    "id", "source", "note", "notes", "log", "file", "path", "url", "run", "runs", "name", "comment",
    "verified", "heads", "vocab", "bubble_rate_profiled", "metric", "role",
    "suggested_split", "family", "calibrate_on", "schedule", "model", "mode", "scaling",
)  # fmt: skip
#: Fields that state the owner of the machine. A different owner is noted, but not refused.
OWNERS = ("system", "submitter", "owner", "cluster", "vendor", "cloud")
#: The note on a table that states no batch.
ASSUMED = "no batch is stated: one sample for each GPU is assumed (weak scaling)"
#: Pattern of the data-parallel part of a strategy's name, whose size follows from the ranks. Other
#: dimensions in the name must match exactly.
_DATA = r"[fh]?sdp|d?dp"
_KNOWN = {
    *(name for names in NUMBERS.values() for name in names), *CONFIGURATION, *PROVENANCE, *OWNERS,
}  # fmt: skip


@dataclass(kw_only=True)
class Fields:
    """The fields that hold for all points of a table, and notes taken while they are read."""

    shared: Mapping[str, Any]
    per_node: int = 8
    notes: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    owners: dict[str, set[str]] = field(default_factory=dict)

    def number(self, row: Mapping[str, Any], what: str, where: str) -> float | None:
        """Return a number from the row, from the table's model or from the table.

        The first of the three that states the number counts. Return None if none does, and raise
        ValueError if the stated value is negative or not a number.
        """
        model = self.shared.get("model")
        for level in (row, model if isinstance(model, Mapping) else {}, self.shared):
            low = {str(key).lower(): value for key, value in level.items()}
            for name in NUMBERS[what]:
                value = low.get(name)
                if value is None or isinstance(value, dict | list):
                    continue
                if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
                    raise ValueError(
                        f"{where}: {name} is {value!r}, expected a number of at least 0"
                    )
                return float(value)
        return None

    def note(self, row: Mapping[str, Any]) -> None:
        """Remember the fields and the owner of a row."""
        self.seen |= {str(key) for key in row}
        for name, value in row.items():
            if str(name).lower() in OWNERS:
                self.owners.setdefault(str(name).lower(), set()).add(str(value))

    def unknown(self) -> list[str]:
        """Return notes on fields that are ignored, and on sizes from machines of several owners."""
        extra = sorted(n for n in self.seen if n.lower() not in _KNOWN and not is_measure(n))
        several = [
            f"the sizes come from more than one {name} ({', '.join(sorted(values))}), whose effect"
            " is unknown"
            for name, values in self.owners.items()
            if len(values) > 1
        ]
        return [*several, f"not used: {', '.join(extra)}"] if extra else several


def shape_of(row: Mapping[str, Any], fields: Fields, where: str) -> Shape:
    """Return the shape of a point. Raise ValueError if its ranks are unknown or do not divide."""
    fields.note({key: value for key, value in row.items() if value != ""})
    tensor = _whole(row, fields, "tensor", where)
    stages = _whole(row, fields, "stages", where)
    context = _whole(row, fields, "context", where)
    inner = tensor * stages * context
    ranks = _ranks(row, fields, inner, where)
    seq = _whole(row, fields, "seq", where, 0)
    if not seq:
        seq = 2048
        fields.notes.append("no sequence length is stated: 2048 is assumed")
    words = " ".join(
        str(row.get(k) or fields.shared.get(k) or "") for k in ("strategy", "schedule")
    )
    schedule, chunks = _schedule(row, fields, words, stages, where)
    micros, micro_batch = _batch(row, fields, ranks // inner, seq, where, model_parallel=inner > 1)
    return Shape(
        ranks=ranks,
        tensor=tensor,
        context=context,
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        micros=micros,
        micro_batch=micro_batch,
        seq=seq,
        kept=_kept(words, fields.number(row, "zero", where), stages * tensor > 1),
        model=_model(row, fields, where),
        configuration=_configuration(row),
    )


def _whole(row: Mapping[str, Any], fields: Fields, what: str, where: str, default: int = 1) -> int:
    """Return a whole number of at least 1, or the default if none is stated."""
    value = fields.number(row, what, where)
    if value is None:
        return default
    if value != int(value):
        raise ValueError(f"{where}: {NUMBERS[what][0]} is {value}, expected a whole number")
    if value > (most := MOST_OF.get(what, 10**7)):
        raise ValueError(f"{where}: {NUMBERS[what][0]} is {value:g}, expected at most {most}")
    return max(1, int(value))


def _ranks(row: Mapping[str, Any], fields: Fields, inner: int, where: str) -> int:
    """Return the number of all GPUs, of which ``inner`` share a replica.

    It is stated directly, or follows from the nodes or from the replicas.
    """
    ranks = _whole(row, fields, "ranks", where, 0)
    ranks = ranks or _whole(row, fields, "nodes", where, 0) * fields.per_node
    ranks = ranks or _whole(row, fields, "data", where) * inner
    stated = any(fields.number(row, what, where) for what in ("ranks", "nodes"))
    if not stated and ranks == 1:
        raise ValueError(f"{where}: the number of GPUs (N) is missing")
    if ranks % inner:
        raise ValueError(f"{where}: {ranks} GPUs are not a multiple of tp x pp x cp = {inner}")
    return ranks


def _schedule(
    row: Mapping[str, Any], fields: Fields, words: str, stages: int, where: str
) -> tuple[PipelineSchedule, int]:
    """Return the pipeline schedule and the number of chunks on each rank.

    Only interleaved schedules have more than one chunk.
    """
    schedule = schedule_of(str(row.get("schedule") or "")) or schedule_of(words)
    chunks = _whole(row, fields, "chunks", where)
    if schedule is None:
        schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_EACH
    if schedule is not PipelineSchedule.INTERLEAVED:
        return schedule, 1
    if chunks == 1:
        # If not stated, each chunk is one layer. The embedding and the head count as layers.
        layers = _whole(row, fields, "layers", where, 0) or 2 * stages
        chunks = max(2, round((layers + 2) / stages))
    return schedule, chunks


def _model(row: Mapping[str, Any], fields: Fields, where: str) -> Model:
    """Return the model that the point or its table states."""
    hidden = fields.number(row, "hidden", where)
    model = row.get("model", fields.shared.get("model"))
    return Model(
        name=str(model.get("name", "") if isinstance(model, Mapping) else model or ""),
        params=_params(row, fields, where),
        trains=fields.number(row, "trains", where),
        layers=_whole(row, fields, "layers", where, 0) or None,
        hidden=int(hidden) if hidden else None,
        keys=_whole(row, fields, "keys", where, 0) or None,
    )


def _batch(
    row: Mapping[str, Any],
    fields: Fields,
    replicas: int,
    seq: int,
    where: str,
    *,
    model_parallel: bool,
) -> tuple[int, float]:
    """Return the micro-batches of a replica in a step, and the samples of each."""
    micro_batch = fields.number(row, "micro_batch", where)
    micros = fields.number(row, "micros", where) or fields.number(row, "accumulated", where)
    of_replica = fields.number(row, "replica_batch", where)
    if (whole := fields.number(row, "global_batch", where)) is not None:
        of_replica = whole / replicas
    elif (tokens := fields.number(row, "global_tokens", where)) is not None:
        of_replica = tokens / seq / replicas
    if of_replica is not None:
        if micros is None and micro_batch is None and model_parallel:
            micro_batch = 1.0
            fields.notes.append("no micro-batch is stated: one sample is assumed")
        if micros is None:
            micros = round(of_replica / micro_batch) if micro_batch else 1
        return max(1, int(micros)), of_replica / max(1, int(micros))
    if micro_batch is None:
        micro_batch = 1.0
        fields.notes.append(ASSUMED)
    return max(1, int(micros or 1)), micro_batch


def _params(row: Mapping[str, Any], fields: Fields, where: str) -> float | None:
    """Return the parameters: as stated, as 12 L h^2 of a transformer, or from a name such as 8B or
    760m.

    Return None for adapters unless their trained parameters are stated, because only those are
    exchanged.
    """
    words = (row.get("strategy"), fields.shared.get("strategy"), row.get("optimizer"))
    adapts = re.search(r"lora|adapter|frozen", " ".join(str(word or "") for word in words).lower())
    if adapts and fields.number(row, "trains", where) is None:
        fields.notes.append("adapters are trained, and the bytes that they exchange are unknown")
        return None
    stated = fields.number(row, "params", where)
    layers, hidden = (fields.number(row, what, where) for what in ("layers", "hidden"))
    if stated is not None or (layers and hidden):
        return stated or 12 * (layers or 0) * (hidden or 0) ** 2
    model = row.get("model", fields.shared.get("model"))
    name = str(model.get("name", "") if isinstance(model, Mapping) else model or "")
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([mbt])\b", name.lower())
    if size is None:
        return None
    fields.notes.append("the number of parameters is taken from the model's name")
    return float(size[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[size[2]]


def _kept(words: str, zero: float | None, model_parallel: bool) -> KeptStates:
    low = words.lower()
    if zero is not None:
        return (
            KeptStates.WHOLE,
            KeptStates.OPTIMIZER_CUT,
            KeptStates.OPTIMIZER_CUT,
            KeptStates.ALL_CUT,
        )[min(3, int(zero))]
    if re.search(r"\bhsdp|hybrid.shard", low):
        return KeptStates.NODE_CUT
    if re.search(r"fsdp|fully.shard|full_shard|zero[-_ ]?3", low):
        return KeptStates.ALL_CUT
    if model_parallel or re.search(r"zero[-_ ]?[12]|distributed.optimizer", low):
        return KeptStates.OPTIMIZER_CUT
    return KeptStates.WHOLE


def _configuration(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the configuration of a row as written, but in lower case and without separators.

    The sizes of data parallelism in the strategy's name (FSDP32, DP8) are left out, because they
    follow from the ranks.
    """
    low = {str(key).lower(): value for key, value in row.items()}
    alike = [(name, _written(low[name])) for name in CONFIGURATION if low.get(name) is not None]
    return tuple((name, _unsized(v) if name == "strategy" else v) for name, v in alike)


def _written(value: Any) -> str:
    """Return a value in normal form: 8 equals 8.0, and ``H100-SXM5`` equals ``h100 sxm5``."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return f"{float(value):g}"
    return re.sub(r"[\s_-]+", " ", str(value).lower()).strip()


def _unsized(strategy: str) -> str:
    """Return a strategy's name without the number of data-parallel ranks: FSDP32 becomes FSDP."""
    return re.sub(rf"\b({_DATA})[ =:]?\d+\b", r"\1", strategy)


#: Link rates in GB/s per GPU (inside a node, between nodes) that are assumed if the table does not
#: state them and the GPU is unknown.
FALLBACK_GB_S = {"intra": 60.0, "inter": 12.5}
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?([\d.,]+)\s*([GMT])(bit|b|B)(?:ps|/s|it/s)")
_UNITS = {"M": 1e6, "G": 1e9, "T": 1e12}


def fabric_of(hardware: Mapping[str, Any]) -> tuple[Fabric, float | None, Sequence[str]]:
    """Return the links, the peak FLOP/s of a GPU, and the assumptions that were made."""
    notes = []
    gpu = str(hardware.get("gpu", "")).lower()
    known = devices.described(gpu)
    per_node = hardware.get("gpus_per_node", 8)
    if not isinstance(per_node, int) or per_node < 1:
        raise ValueError(f"hardware.gpus_per_node is {per_node!r}, expected a whole number")
    if "gpus_per_node" not in hardware:
        notes.append("8 GPUs per node are assumed")
    rates = {}
    usual = {"intra": known.link_gb_s, "inter": known.network_gb_s} if known else FALLBACK_GB_S
    for place, usual_gb_s in usual.items():
        rate = _stated_rate(hardware, place, per_node)
        if rate is None:
            rate = 1e9 * usual_gb_s
            notes.append(
                f"no {place}-node rate is stated: {rate / 1e9:g} GB/s per device is assumed"
            )
        rates[place] = rate
    peak = next(
        (float(value) for key, value in hardware.items() if str(key).startswith("peak_tflops")),
        None,
    )
    if peak is None and known:
        peak = known.tflops.get("bfloat16", known.tflops.get("float16"))
    fabric = Fabric(
        per_node=per_node,
        intra_bytes_per_s=rates["intra"],
        inter_bytes_per_s=rates["inter"],
        assumed=known is None and any("is assumed" in note for note in notes[-2:]),
        torus=bool(re.search(r"\btpu|trillium", gpu)),
    )
    return fabric, peak * 1e12 if peak else None, notes


def _stated_rate(hardware: Mapping[str, Any], place: str, per_node: int) -> float | None:
    """Return the link rate of one GPU in bytes/s, from a field like inter_GBps_per_node or from
    words such as ``4x 100 Gbit/s``. Return None if neither states it.
    """
    for name, value in hardware.items():
        match = re.fullmatch(rf"{place}_([GMT])(B|b|bit)_?(?:ps|_s|_per_s)(_per_(gpu|node))?", name)
        if match is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
            raise ValueError(f"hardware.{name} is {value!r}, expected a number above 0")
        rate = float(value) * _UNITS[match[1]] / (1 if match[2] == "B" else 8)
        return rate / (per_node if match[4] == "node" else 1)
    words = str(hardware.get(place, ""))
    if (rate_words := _RATE.search(words)) is None:
        return None
    rate = int(rate_words[1] or 1) * float(rate_words[2].replace(",", "")) * _UNITS[rate_words[3]]
    rate /= 1 if rate_words[4] == "B" else 8
    shared = re.search(r"node|server|host|machine", words.lower())
    return rate / (per_node if shared else 1)
