"""Versions here beside the least that they should be: a table of data, ``minimum_versions.toml``.

What cannot be read, and lines of releases that the table does not know, are skipped: never a pass.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness.host import vendor

TABLE = Path(__file__).with_name("minimum_versions.toml")
_FIRMWARE = Path("/sys/class/infiniband")
_TOOLKIT = Path("/usr/local/cuda/version.json")


class Standing(StrEnum):
    """The outcome of a comparison of versions."""

    OK = "ok"
    BELOW = "below"
    SKIP = "SKIP"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One line of the table: ``least`` of all, or of each ``train`` by its first number."""

    name: str
    why: str
    source: str
    least: str = ""
    trains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComparedVersion:
    """A component as it is here; ``wanted`` is the least that it should be."""

    name: str
    here: str
    wanted: str
    standing: Standing
    source: str


def table() -> list[Component]:
    """The lines of the table, in its order."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["component"]
    return [Component(**{**row, "trains": tuple(row.get("trains", ()))}) for row in rows]


def compared() -> list[ComparedVersion]:
    """Every component, as it is here."""
    return [compare(component, _here(component.name)) for component in table()]


def compare(component: Component, here: str) -> ComparedVersion:
    """A version beside the least; SKIP where either of them is not known."""
    wanted = component.least
    if component.trains:
        line = _numbers(here)[:1]
        wanted = next((train for train in component.trains if _numbers(train)[:1] == line), "")
    standing = Standing.SKIP
    if _numbers(here) and wanted:
        standing = Standing.OK if _numbers(here) >= _numbers(wanted) else Standing.BELOW
    return ComparedVersion(
        name=component.name,
        here=here,
        wanted=wanted,
        standing=standing,
        source=component.source,
    )


def _numbers(version: str) -> list[int]:
    """``580.159.03`` as numbers; nothing of a text without any."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _here(name: str) -> str:
    """A component's version, where it can be read without root and without CUDA; else nothing."""
    if name == "driver":
        return vendor.driver() or ""
    if name == "connectx firmware":
        return min(_firmware(), key=_numbers, default="")
    if name == "cuda toolkit":
        return _toolkit()
    return next(_packages(name), "")


def _packages(name: str) -> Iterator[str]:
    """The installed package of that name, or NVIDIA's for the CUDA at hand."""
    for package in (name, f"nvidia-{name}-cu13", f"nvidia-{name}-cu12"):
        try:
            yield metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _firmware() -> Iterator[str]:
    for path in sorted(_FIRMWARE.glob("mlx5*/fw_ver")):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except OSError:
            continue


def _toolkit() -> str:
    try:
        return str(json.loads(_TOOLKIT.read_text(encoding="utf-8"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
