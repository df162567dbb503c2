"""Print the topology of each kind of node: cores, caches, GPUs, their links, network cards."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import RunRecord

_TOPOLOGY = "topology: "
_NETWORK = "network: "
_GPU = f"{_TOPOLOGY}gpu "
_CARD = f"{_TOPOLOGY}card "
#: A GPU and its row of the matrix of links.
Row = tuple[str, Sequence[str]]


def lines(run: RunRecord, width: int) -> list[str]:
    """Return one map for each group of identical nodes, or no lines if the record has no map."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, facts in run.facts.items():
        seen = {key: fact for key, fact in facts.items() if key.startswith((_TOPOLOGY, _NETWORK))}
        if f"{_TOPOLOGY}cpus" in seen:
            alike.setdefault(tuple(seen.items()), []).append(host)
    shown: list[str] = []
    for seen_there, hosts in alike.items():
        name = hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes as {hosts[0]}"
        shown += [rule(f"topology: {name}", width), *_map(dict(seen_there), width), ""]
    return shown


def _map(facts: Mapping[str, str], width: int) -> list[str]:
    rows = {
        "cores": facts.get(f"{_TOPOLOGY}cpus", ""),
        "caches": facts.get(f"{_TOPOLOGY}shared caches", ""),
        "numa": facts.get(f"{_TOPOLOGY}numa nodes", ""),
        "distances": facts.get(f"{_TOPOLOGY}numa distances", ""),
        "gpus": facts.get(f"{_TOPOLOGY}gpus", ""),
    }
    for name, text in facts.items():
        if name.startswith(_NETWORK):
            card = name.removeprefix(_NETWORK)
            near = facts.get(f"{_CARD}{card.split()[0]}", "")
            rows[card] = ", ".join(filter(None, (text, near)))
    shown = []
    for name, text in rows.items():
        shown += wrap(f" {name:<13} {text}", width, 15) if text else []
    return [*shown, *_matrix(facts, width)]


def _matrix(facts: Mapping[str, str], width: int) -> list[str]:
    """Return the link between each pair of GPUs, with the names of ``nvidia-smi topo -m``."""
    gpus = {key.removeprefix(_GPU): fact for key, fact in facts.items() if key.startswith(_GPU)}
    if not gpus:
        return []
    rows = [(index, text.replace(",", "").split(" numa ")) for index, text in gpus.items()]
    columns: list[Column[Row]] = [Column("gpu", 99, lambda row: row[0], left=True)]
    for place, (index, _) in enumerate(rows):
        columns.append(Column(index, 90 - place, functools.partial(_joined, place)))
    columns.append(Column("numa", 95, lambda row: row[1][1] if len(row[1]) > 1 else ""))
    legend = (
        " NVLink; PIX and PXB: PCIe switches; PHB: a host bridge; NODE: within a NUMA node;"
        " SYS: between sockets"
    )
    return [*Table(columns=columns, rows=rows).lines(width), *wrap(legend, width, 1)]


def _joined(place: int, row: Row) -> str:
    return row[1][0].split()[place]
