"""Read the result of DCGM diagnostics (``dcgmi diag -r 3 -j``)."""

import json
from collections import Counter

OTHERS = "DCGM"


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the number of tests by status, and the names of the tests that did not pass."""
    document = json.loads(text)
    diagnostic = document.get("DCGM Diagnostic", document.get("DCGM GPU Diagnostic"))
    if diagnostic is None:
        return None
    tests = [t for category in diagnostic["test_categories"] for t in category["tests"]]
    words = {test["name"]: _word(test) for test in tests}
    counts = Counter(words.values())
    lines = [("tests", ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))]
    lines += [(name, word) for name, word in words.items() if word.lower() not in ("pass", "skip")]
    version = document.get("metadata", {}).get("version", diagnostic.get("version"))
    return [*lines, *([("version", str(version))] if version else [])]


def _word(test: dict) -> str:  # type: ignore[type-arg]
    """Return the worst status of a test, among the statuses of its devices and of its summary."""
    results = [r["status"] for r in test.get("results", ())]
    if summary := test.get("test_summary"):
        results.append(summary["status"])
    bad = [word for word in results if word.lower() not in ("pass", "skip")]
    passed = [word for word in results if word.lower() == "pass"]
    return str((bad or passed or results or ["nothing"])[0])
