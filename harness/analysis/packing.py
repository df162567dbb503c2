"""Packing: which worlds run at once, and where: on nodes, or devices of a node, of their own.

    worlds -> slots (which run side by side) -> seats (on which nodes and devices, drawn each time)

A ladder of 64 nodes so needs two slots instead of seven. What worlds do to their neighbours is
measured (``analysis/judging/biases.py``).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cases import CaseSpec


@dataclass(frozen=True)
class Placement:
    """Where one world runs: its nodes, and the first device that it has on each."""

    hosts: tuple[int, ...]
    devices: tuple[int, ...]


def lot(seed: int, purpose: str, attempt: int, turn: int, arms: Sequence[str]) -> random.Random:
    """The draw of seats for arms that are launched at once."""
    return random.Random(f"{seed}-{purpose}-{attempt}-{turn}-{'-'.join(arms)}")


def slots(worlds: Sequence[CaseSpec], room: Sequence[int]) -> list[list[int]]:
    """Which worlds run at once, by their numbers: first fit, the largest first.

    ``room``: ranks of one device each that fit on every node. A world that fits nowhere is alone.
    """
    filled: list[list[int]] = []
    for number in sorted(range(len(worlds)), key=lambda i: _largest_first(worlds[i])):
        for slot in filled:
            if seats([worlds[i] for i in (*slot, number)], room) is not None:
                slot.append(number)
                break
        else:
            filled.append([number])
    return filled


def seats(
    worlds: Sequence[CaseSpec], room: Sequence[int], draw: random.Random | None = None
) -> list[Placement] | None:
    """Where each of the worlds runs; None if they do not fit side by side.

    ``draw`` chooses among nodes that have as much room, and among aligned devices of a node.
    """
    order = list(range(len(room)))
    if draw is not None:
        draw.shuffle(order)
    order.sort(key=lambda node: -room[node])  # a large world finds the large nodes
    taken = [0] * len(room)
    seated: dict[int, Placement] = {}
    for number in sorted(range(len(worlds)), key=lambda i: _largest_first(worlds[i])):
        seat = _seat(worlds[number], order, room, taken)
        if seat is None:
            return None
        seated[number] = seat
    placed = [seated[i] for i in range(len(worlds))]
    if draw is None:
        return placed
    blocks = [_blocks(world, seat) for world, seat in zip(worlds, placed, strict=True)]
    fixed = {host for world in blocks for host, device, size in world if not _aligned(device, size)}
    masks = [
        draw.randrange(size) if _power_of_2(size) and host not in fixed else 0
        for host, size in enumerate(room)
    ]
    moved = [[device ^ (masks[host] & -size) for host, device, size in world] for world in blocks]
    return [Placement(p.hosts, tuple(devices)) for p, devices in zip(placed, moved, strict=True)]


def copies(world: CaseSpec, room: Sequence[int]) -> int:
    """How often a world fits side by side."""
    order = sorted(range(len(room)), key=lambda node: -room[node])  # as ``seats`` without a draw
    taken = [0] * len(room)
    many = 0
    while _seat(world, order, room, taken) is not None:
        many += 1
    return max(1, many)


def _seat(
    world: CaseSpec, order: Sequence[int], room: Sequence[int], taken: list[int]
) -> Placement | None:
    """The first nodes with enough devices left; they are taken."""
    hosts: list[int] = []
    seated: set[int] = set()
    left = iter(order)
    before = 0
    for ranks in world.nodes:
        needed = ranks * world.devices_per_rank
        if needed < before:  # else those that were passed over have too little room, too
            left = iter(order)
        before = needed
        host = next((n for n in left if n not in seated and taken[n] + needed <= room[n]), None)
        if host is None:
            return None
        hosts.append(host)
        seated.add(host)
    if len(set(world.nodes)) == 1:
        hosts.sort()  # neighbours in rank are neighbours in number
    devices = tuple(taken[host] for host in hosts)
    for host, ranks in zip(hosts, world.nodes, strict=True):
        taken[host] += ranks * world.devices_per_rank
    return Placement(tuple(hosts), devices)


def _blocks(world: CaseSpec, seat: Placement) -> list[tuple[int, int, int]]:
    """Host, first device and number of devices of each of a world's parts."""
    sizes = (ranks * world.devices_per_rank for ranks in world.nodes)
    return list(zip(seat.hosts, seat.devices, sizes, strict=True))


def _aligned(device: int, size: int) -> bool:
    """Whether such blocks of a node can change places as wholes."""
    return _power_of_2(size) and device % size == 0


def _largest_first(world: CaseSpec) -> tuple[int, ...]:
    return (-max(world.nodes) * world.devices_per_rank, -world.world_size)


def _power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
