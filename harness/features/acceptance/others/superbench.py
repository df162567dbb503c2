"""Read SuperBench's results-summary.jsonl from ``sb run``: one line of JSON per node."""

import json

OTHERS = "SuperBench"


def read(text: str) -> list[tuple[str, str]] | None:
    """Return for each node how many benchmarks succeeded, and the names of failed benchmarks."""
    nodes = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not nodes or not all(isinstance(n, dict) and "node" in n for n in nodes):
        return None
    lines = []
    for node in nodes:
        codes = {name: code for name, code in node.items() if "/return_code" in name}
        if not codes:
            return None
        failed = [name.partition("/return_code")[0] for name, code in codes.items() if code]
        bad = f"; failed: {', '.join(failed)}" if failed else ""
        lines.append(
            (str(node["node"]), f"{len(codes) - len(failed)} of {len(codes)} succeeded{bad}")
        )
    return lines
