"""scripts/requirements-test.txt lists every package of the tests, with the versions and hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LIST = (ROOT / "scripts" / "requirements-test.txt").read_text()
#: Packages that are not listed: the project, and torch, whose wheel depends on the machine.
UNLISTED = {"scaleproof", "torch"}


def listed() -> dict[str, set[str]]:
    """Return the versions of each listed package."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", LIST, re.M):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the packages that an installed package requires here, and those that these require."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        required = canonicalize_name(requirement.name)
        if (required, line) in seen or required == "torch":
            continue
        seen.add((required, line))
        yield required
        try:
            yield from needed(required, frozenset(requirement.extras), seen)
        except PackageNotFoundError:
            continue  # not installed for this Python


def test_every_required_package_is_listed_with_hashes() -> None:
    missing = {*needed("scaleproof", frozenset({"test"}), set())} - {*listed()} - UNLISTED
    assert not missing, f"run: bash scripts/hashes.sh ({sorted(missing)})"
    blocks = re.split(r"\n(?=[\w.-]+==)", LIST)
    assert all("--hash=sha256:" in block for block in blocks[1:])


def test_listed_versions_are_those_of_the_constraints() -> None:
    versions = listed()
    pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    for name, version in pinned:
        if canonicalize_name(name) in versions:
            assert versions[canonicalize_name(name)] == {version}, f"{name}: bash scripts/hashes.sh"
