"""Read the result of nccl-tests: ``all_reduce_perf -J result.json``, or what it prints."""

import json
import re

OTHERS = "nccl-tests"
#: What mpirun prints before each line, and indentation.
_PREFIX = r"^[ \t]*(?:\[\d+,\d+\]<\w+>:)?[ \t]*"
#: A row of the table: size, count, type, operation, root, time, and both bandwidths.
_ROW = re.compile(_PREFIX + r"(\d+) +\d+ +\w+ +\w+ +-?\d+ +[\d.]+ +[\d.]+ +[\d.]+ ", re.M)
_MEAN = re.compile(_PREFIX + r"# Avg bus bandwidth *: *([\d.]+)", re.M)
_WRONG = re.compile(_PREFIX + r"# Out of bounds values *: *(\d+)", re.M)
_DEVICE = re.compile(_PREFIX + r"# +Rank +\d+ ", re.M)
_VERSION = re.compile(r"nccl-library[=: ]+(\S+)|NCCL version ([\d.]+)")


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the bandwidth in GB/s, the number of wrong values, and the payload sizes."""
    if not text.lstrip().startswith("{"):
        return _of_text(text)
    document = json.loads(text)
    if "average_bus_bandwidth" not in document or "results" not in document:
        return None
    results = document["results"]
    sizes = [row["size"] for row in results]
    lines = _lines(
        f"{document['average_bus_bandwidth']['bandwidth']:g}",
        str(document["out_of_bounds"]["count"]),
        len(document.get("devices", ())),
        sizes,
    )
    if "nccl_version" in document:
        lines.append(("NCCL", str(document["nccl_version"])))
    return lines


def _of_text(text: str) -> list[tuple[str, str]] | None:
    """Read the table that the program prints."""
    mean = _MEAN.search(text)
    wrong = _WRONG.search(text)
    sizes = [int(row[1]) for row in _ROW.finditer(text)]
    if mean is None or not sizes:
        return None
    devices = len(_DEVICE.findall(text))
    lines = _lines(mean[1], "unsaid" if wrong is None else wrong[1], devices, sizes)
    if (version := _VERSION.search(text)) is not None:
        lines.append(("NCCL", version[1] or version[2]))
    return lines


def _lines(mean: str, wrong: str, devices: int, sizes: list[int]) -> list[tuple[str, str]]:
    return [
        ("average bus bandwidth", f"{mean} GB/s"),
        ("values out of bounds", wrong),
        ("devices", str(devices or "unsaid")),
        ("payloads", f"{len(sizes)}, {min(sizes)} to {max(sizes)} B"),
    ]
