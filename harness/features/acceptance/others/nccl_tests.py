"""Read the result of nccl-tests (``all_reduce_perf -J result.json``)."""

import json

OTHERS = "nccl-tests"


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the bandwidth in GB/s, the number of wrong values, and the payload sizes."""
    document = json.loads(text)
    if "average_bus_bandwidth" not in document or "results" not in document:
        return None
    results = document["results"]
    sizes = [row["size"] for row in results]
    lines = [
        ("average bus bandwidth", f"{document['average_bus_bandwidth']['bandwidth']:g} GB/s"),
        ("values out of bounds", str(document["out_of_bounds"]["count"])),
        ("devices", str(len(document.get("devices", ()))) or "unsaid"),
        ("payloads", f"{len(sizes)}, {min(sizes)} to {max(sizes)} B"),
    ]
    if "nccl_version" in document:
        lines.append(("NCCL", str(document["nccl_version"])))
    return lines
