"""Read the system description of mlperf-sysinfo, which MLPerf Training requires."""

import json

OTHERS = "mlperf-sysinfo"
_SHOWN = (
    "submitter", "system_name", "number_of_nodes", "host_processor_model_name",
    "accelerator_model_name", "accelerators_per_node", "host_networking", "framework",
)  # fmt: skip


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the description of the system. The first line reports whether nodes are missing."""
    document = json.loads(text)
    made = document.get("mlperf_sysinfo")
    if made is None:
        return None
    nodes = f"{made['nodes_collected']} of {made['nodes_expected']}"
    whole = nodes if made["complete"] else f"{nodes}: A PARTIAL CAPTURE"
    lines = [("nodes described", whole), ("version", str(made["version"]))]
    return [
        *lines,
        *((name.replace("_", " "), str(document[name])) for name in _SHOWN if document.get(name)),
    ]
