"""The names of columns in published tables, in all their usual spellings.

heading as people write it -> name of a field as in JSON tables

``predict`` and ``verify table`` both use this list, so that they read the same tables.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Patterns of normalised headings, and the field that each one means. The first that fits counts.
_SPELLINGS: tuple[tuple[str, str], ...] = (
    # the number of ranks
    (
        r"(?!num_workers)(total_|num(ber)?_(of_)?|no\.?_of_|n_)?(gpu|tpu|npu|gcd|chip|accelerator|device|worker|processe?|"
        r"proc|rank)s(_n)?",
        "gpus",
    ),
    (r"(gpu|tpu|npu|gcd|chip|accelerator|device|card|worker|rank)s?_(count|num|number)", "gpus"),
    (r"(num(ber)?_of_|n_)?(gpu_)?cards?|ngpus?", "gpus"),
    (r"num(ber)?_of_[a-z]+\d+\w*_(gpu|card|device)s", "gpus"),
    (r"(num|n)_(gpu|tpu|npu|gcd|chip|accelerator|device|worker|process|rank)", "gpus"),
    (r"(num(ber)?_(of_)?|no\.?_of_|n_)nodes?|node_count", "nodes"),
    # the time of a step
    (r"(elapsed_)?time_per_(iteration|iter|step|batch)_(ms|s)", r"step_time_\3"),
    (r"(s|sec|seconds)_per_(it|iter|iteration|step|batch)", "step_time_s"),
    (r"ms_per_(it|iter|iteration|step|batch)", "step_time_ms"),
    (r"(it|its|iters|iterations|steps|batches)_per_(s|sec|second)", "steps_per_s"),
    (
        r"(training_|train_)?step_time(_seconds_per_step|_in_seconds|_s|_sec|_seconds)?",
        "step_time_s",
    ),
    (r"(training_|train_)?step_time_(in_)?(ms|milliseconds)", "step_time_ms"),
    # rates
    (r"(training_|train_)?(throughput|speed)_in_tokens_per_(s|sec|second)", "tokens_per_s"),
    (r"(model_)?flops?_utili[sz]ation(_mfu)?(_percent)?|mfu_percent", "mfu"),
    (
        r"(time_to_train|days_(to_train|per|for))_(1t|1_trillion|trillion)_tokens(_in_days|_days)?",
        "days_per_trillion_tokens",
    ),
    (r"tgs(_tokens_per_gpu_per_s(ec|econd)?)?", "tokens_per_s_per_gpu"),
    (r"(tps|wps|token_throughput)_per_(gpu|device|chip|rank)", "tokens_per_s_per_gpu"),
    (r"tps|wps|token_throughput", "tokens_per_s"),
    (r"(train_)?(samples|sequences|images)_per_second", "samples_per_s"),
    (r"(train_)?tokens_per_second", "tokens_per_s"),
    (r"(training_|train_)?throughput", "samples_per_s"),  # samples of whatever kind
    (
        r"(seq|seqs|sample|image|img|imgs|example|qps)_per_(s|sec|second)|qps|ips|fps",
        "samples_per_s",
    ),
    (r"(model_)?([tp])flops?_per_(s|sec|second)(_per_(gpu|device|chip|rank))?", r"\2flops_per_gpu"),
    (r"(model_)?([tp])flops?_per_(gpu|device|chip|rank)", r"\2flops_per_gpu"),
)
#: Headings in Chinese.
_OTHER_LANGUAGES = {"卡数": "gpus", "GPU数": "gpus", "GPU数量": "gpus", "节点数": "nodes"}
#: A rate in brackets behind a word such as "throughput", for example "Throughput - FP32 (tok/s)".
_IN_BRACKETS = re.compile(
    r"\W*(training |train )?(throughput|performance|speed)\b.*?[\[(]([^\])]*/[^\])]*)[\])]", re.I
)
#: Words of headings of figures that follow from a run and do not choose its configuration.
_OF_RESULTS = re.compile(
    r"throughput|performance|speed|scal(ing|ability)|efficien|time|latency|loss|accura|\bacc\b|ppl"
    r"|perplex|\bf1\b|recall|aggregate|\btotal\b|improve|mem(ory)?\b|power|energy|util|bandwidth|cost|price|mfu|hfu|flop|days|hours|minutes"
    r"|seconds|std|dev|±|/s\b|/sec|per (s|sec|second)\b|%|overhead|comm|wait|idle|gain|ideal|ratio",
    re.I,
)


def field_name(heading: str) -> str:
    """Return the name of the field that a heading stands for.

    ``Step time (ms)`` becomes step_time_ms, ``TPS/GPU`` becomes tokens_per_s_per_gpu, and ``Number
    of GPUs`` becomes gpus. A heading that is not known is only normalised, and a single word that
    is not known is not changed.
    """
    bare = heading.strip().strip("*_` ")
    if bare in _OTHER_LANGUAGES:
        return _OTHER_LANGUAGES[bare]
    rate = _IN_BRACKETS.match(bare)
    plain = rate[3] if rate is not None else bare
    words = re.sub(r"[\[(](.*?)[\])]", r" \1 ", plain.lower().replace("/", " per "))
    name = re.sub(r"[^a-z0-9.]+", "_", words.replace("#", "num ")).strip("_")
    for written, field in _SPELLINGS:
        if (match := re.fullmatch(written, name)) is not None:
            return match.expand(field)
    return bare if bare.isidentifier() else name


def is_result(heading: str) -> bool:
    """Return whether a heading names a figure that follows from a run, such as a loss or a rate."""
    return bool(_OF_RESULTS.search(heading.replace("_", " ")))


def by_variant(points: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return one row for each variant, if headings such as "Throughput - FP32" name variants.

    The field ``variant`` of these rows names it.
    """
    of_variant = _variants(dict.fromkeys(str(name) for point in points for name in point))
    if len(of_variant) < 2:
        return points
    varying = {heading for of in of_variant.values() for heading in of}
    return [
        {"variant": variant}
        | {name: cell for name, cell in point.items() if name not in varying}
        | {of[name]: cell for name, cell in point.items() if name in of}
        for variant, of in of_variant.items()
        for point in points
    ]


def _variants(headings: Iterable[str]) -> dict[str, dict[str, str]]:
    """Map each variant to its headings, and each of these to the heading without the variant."""
    of_variant: dict[str, dict[str, str]] = {}
    for heading in headings:
        match = re.fullmatch(r"\W*([^-–]+?) [-–] ([^\[(]+?)( *[\[(].*)?\W*", heading)
        if match is not None and is_result(match[1]):
            of_variant.setdefault(match[2], {})[heading] = f"{match[1]}{match[3] or ''}"
    return of_variant
