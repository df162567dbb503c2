"""Read the report of ReFrame 4.x (``reframe -r --report-file=report.json``)."""

import json

OTHERS = "ReFrame"


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the last run: failed cases, and every performance value with its reference."""
    document = json.loads(text)
    if "session_info" not in document or "runs" not in document:
        return None
    info = document["session_info"]
    last = document["runs"][-1]["testcases"]
    failed = [case for case in last if case["result"] != "pass"]
    lines = [("version", str(info["version"])), ("cases", f"{len(last)}, {len(failed)} failed")]
    lines += [(case["display_name"], f"failed in {case['fail_phase']}") for case in failed]
    for case in last:
        for name, figure in (case.get("perfvalues") or {}).items():
            value, expected, _, _, unit, *_ = figure
            lines.append((name, f"{value:g} {unit}, reference {expected:g}"))
    return lines
