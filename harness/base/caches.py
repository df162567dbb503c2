"""Where this user's caches lie."""

import os
from pathlib import Path


def folder() -> Path | None:
    """The folder of this program; None for a user without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "scaleproof"
    home = os.environ.get("HOME")
    return Path(home) / ".cache/scaleproof" if home else None
