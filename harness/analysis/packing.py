"""Packing: choose which worlds run concurrently, and on which separate nodes or devices.

    worlds -> slots (worlds that run concurrently) -> placements (their nodes and devices)

Placements are drawn at random. With packing, a scaling sweep of 64 nodes needs two slots instead of
seven. The slowdown of worlds by concurrent worlds is measured (``analysis/judging/biases.py``).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cases import CaseSpec


@dataclass(frozen=True)
class Placement:
    """The placement of one world: its nodes, and its first device on each of them."""

    hosts: tuple[int, ...]
    devices: tuple[int, ...]


def lot(seed: int, purpose: str, attempt: int, turn: int, arms: Sequence[str]) -> random.Random:
    """Return the random generator that draws the placements of concurrently launched arms."""
    return random.Random(f"{seed}-{purpose}-{attempt}-{turn}-{'-'.join(arms)}")


def slots(worlds: Sequence[CaseSpec], room: Sequence[int]) -> list[list[int]]:
    """Return the slots, each a list of indices of worlds that run concurrently.

    Worlds are assigned by first fit, the largest first. ``room`` is the number of devices of each
    node. A world that does not fit into an existing slot gets a separate slot.
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
    """Return the placement of each world, or None if they do not fit concurrently.

    ``draw`` chooses among nodes with the same number of devices. On a node, it chooses the first
    device of each world so that the blocks of devices stay aligned.
    """
    order = list(range(len(room)))
    if draw is not None:
        draw.shuffle(order)
    order.sort(key=lambda node: -room[node])  # large worlds come first and need the large nodes
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
    """Return how many copies of a world fit concurrently, at least 1."""
    # ``seats`` uses the same order without a draw.
    order = sorted(range(len(room)), key=lambda node: -room[node])
    taken = [0] * len(room)
    many = 0
    while _seat(world, order, room, taken) is not None:
        many += 1
    return max(1, many)


def _seat(
    world: CaseSpec, order: Sequence[int], room: Sequence[int], taken: list[int]
) -> Placement | None:
    """Return a placement on the first nodes with enough free devices; mark the devices as taken."""
    hosts: list[int] = []
    seated: set[int] = set()
    left = iter(order)
    before = 0
    for ranks in world.nodes:
        needed = ranks * world.devices_per_rank
        # Skipped nodes are too small for this part, but may fit a smaller part.
        if needed < before:
            left = iter(order)
        before = needed
        host = next((n for n in left if n not in seated and taken[n] + needed <= room[n]), None)
        if host is None:
            return None
        hosts.append(host)
        seated.add(host)
    if len(set(world.nodes)) == 1:
        hosts.sort()  # consecutive ranks run on consecutive nodes
    devices = tuple(taken[host] for host in hosts)
    for host, ranks in zip(hosts, world.nodes, strict=True):
        taken[host] += ranks * world.devices_per_rank
    return Placement(tuple(hosts), devices)


def _blocks(world: CaseSpec, seat: Placement) -> list[tuple[int, int, int]]:
    """Return the host, first device and number of devices of each part of a world."""
    sizes = (ranks * world.devices_per_rank for ranks in world.nodes)
    return list(zip(seat.hosts, seat.devices, sizes, strict=True))


def _aligned(device: int, size: int) -> bool:
    """Return whether a block of devices with this start and size can be swapped within a node."""
    return _power_of_2(size) and device % size == 0


def _largest_first(world: CaseSpec) -> tuple[int, ...]:
    return (-max(world.nodes) * world.devices_per_rank, -world.world_size)


def _power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
