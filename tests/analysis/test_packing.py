"""Worlds that run at once never share a device, whatever their sizes and placements are."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from harness.analysis import packing
from harness.cases import CaseSpec, Device, Site

ROOMS = st.lists(st.sampled_from([1, 2, 4, 6, 8]), min_size=1, max_size=8)


def world(*nodes: int) -> CaseSpec:
    return Site(device=Device.CPU, backend="gloo", nodes=nodes).case("ddp/mlp-nano")


def worlds_of(room: list[int]) -> st.SearchStrategy[list[CaseSpec]]:
    parts = st.lists(st.integers(1, max(room)), min_size=1, max_size=len(room))
    return st.lists(parts.map(lambda nodes: world(*nodes)), min_size=1, max_size=6)


@given(data=st.data(), room=ROOMS, seed=st.integers(0, 99))
def test_every_world_gets_existing_devices_that_no_other_world_uses(
    data: st.DataObject, room: list[int], seed: int
) -> None:
    worlds = data.draw(worlds_of(room))
    for slot in packing.slots(worlds, room):
        beside = [worlds[i] for i in slot]
        seats = packing.seats(beside, room, random.Random(seed))
        if seats is None:
            assert len(slot) == 1 and packing.seats(beside, room) is None, (
                "only a single world that is too large may have no placement"
            )
            continue
        taken = [
            (host, device + i)
            for case, seat in zip(beside, seats, strict=True)
            for host, device, ranks in zip(seat.hosts, seat.devices, case.nodes, strict=True)
            for i in range(ranks)
        ]
        assert len(taken) == len(set(taken)) == sum(case.world_size for case in beside)
        assert all(0 <= device < room[host] for host, device in taken)
        assert all(len(set(seat.hosts)) == len(seat.hosts) for seat in seats)


@given(data=st.data(), room=ROOMS)
def test_every_world_is_in_exactly_one_slot(data: st.DataObject, room: list[int]) -> None:
    worlds = data.draw(worlds_of(room))
    assert sorted(i for slot in packing.slots(worlds, room) for i in slot) == [*range(len(worlds))]


def test_a_scaling_sweep_on_64_nodes_of_8_takes_two_slots() -> None:
    ladder = [world(1), *(world(*(8,) * 2**k) for k in range(7))]
    assert len(packing.slots(ladder, (8,) * 64)) == 2
    assert len(packing.slots([world(n) for n in (1, 2, 4, 8)], (8,))) == 2


def test_placements_use_every_device_and_stay_aligned() -> None:
    """Half of a node is one that shares a switch, and no device is always the baseline's."""
    worlds, room = [world(4), world(2), world(1)], (8,)
    drawn = [packing.seats(worlds, room, random.Random(seed)) or [] for seed in range(200)]
    assert {seats[2].devices[0] for seats in drawn} == set(range(8))
    assert {seats[0].devices[0] for seats in drawn} == {0, 4}
    assert {seats[1].devices[0] for seats in drawn} == {0, 2, 4, 6}
    nodes = [
        packing.seats([world(8, 8)], (8,) * 4, random.Random(seed)) or [] for seed in range(99)
    ]
    assert len({seats[0].hosts for seats in nodes}) == 6, (
        "every pair of nodes must occur, in ascending order"
    )


def test_copies_of_a_world_fill_the_devices() -> None:
    assert packing.copies(world(1), (8, 4)) == 12
    assert packing.copies(world(4), (8, 4)) == 3
    assert packing.copies(world(8, 8), (8,) * 5) == 2
