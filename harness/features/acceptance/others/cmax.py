"""Read the output of ClusterMAX (``cmax audit``)."""

import re

OTHERS = "cmax (ClusterMAX)"
_COUNTS = re.compile(r"^(\d+) failed, (\d+) warnings?, (\d+) passed, (\d+) skipped", re.M)


def read(text: str) -> list[tuple[str, str]] | None:
    """Return the counts, and the titles of the checks that failed."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    counts = _COUNTS.search(plain)
    if "# ClusterMAX" not in plain or counts is None:
        return None
    words = ("failed", "warnings", "passed", "skipped")
    lines = [
        (
            "checks",
            ", ".join(
                f"{group} {word}" for group, word in zip(counts.groups(), words, strict=True)
            ),
        )
    ]
    failed = re.findall(r"^FAIL\s+(.+?)\s+\[([\w./-]+)\]$", plain, re.M)
    return [*lines, *((key, f"failed: {title}") for title, key in failed)]
