"""The site's world sizes and nodes, and how they are parsed from options."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Site
from harness.cases.site import parse_name, parse_nodes, resolve, rungs

ENGINES = Catalogue().entries["engines"]


@given(st.integers(1, 512))
def test_world_sizes_are_powers_of_two_and_the_largest(n: int) -> None:
    listed = rungs(n)
    assert listed[0] == 1 and listed[-1] == n
    assert list(listed) == sorted(set(listed))
    assert all(x & (x - 1) == 0 for x in listed[:-1])


def test_malformed_case_names_are_refused() -> None:
    from harness.base.errors import SpecError

    for bad in ("ddp", "ddp/", "/decoder-tiny", "ddp/decoder", ""):
        with pytest.raises(SpecError):
            parse_name(bad)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.data())
def test_a_smaller_world_fills_nodes_in_order(nodes: list[int], data: st.DataObject) -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=tuple(nodes))
    world = data.draw(st.integers(1, sum(nodes)))
    shape = site.shape(world)
    assert sum(shape) == world and 0 not in shape
    assert shape[:-1] == tuple(nodes[: len(shape) - 1]) and shape[-1] <= nodes[len(shape) - 1]


@given(st.lists(st.integers(1, 99), min_size=2, max_size=5))
def test_each_notation_of_ranks_per_node_is_parsed(nodes: list[int]) -> None:
    assert parse_nodes("+".join(map(str, nodes))) == (len(nodes), tuple(nodes))
    assert parse_nodes(f"{len(nodes)}x{nodes[0]}") == (len(nodes), (nodes[0],) * len(nodes))
    assert parse_nodes(str(len(nodes))) == (len(nodes), ())


@pytest.mark.parametrize("text", ["", "0", "-1", "2x", "x8", "2x0", "4+", "4++8", "two", "1.5"])
def test_malformed_nodes_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"cpus": 4}, (4,)),
        ({"cpus": 4, "nodes": "2", "engine": "emulated"}, (2, 2)),
        ({"nodes": "3+1", "engine": "emulated"}, (3, 1)),
    ],
)
def test_options_become_a_site(options: dict[str, object], nodes: tuple[int, ...]) -> None:
    site = resolve(known_engines=ENGINES, **options)  # type: ignore[arg-type]
    assert (site.device, site.nodes) == (Device.CPU, nodes)
    assert site.emulated is (len(nodes) > 1)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"gpus": "2", "cpus": 2}, "exclude each other"),
        (
            {"cpus": 3, "nodes": "2", "engine": "emulated"},
            "--cpus 3 does not divide over --nodes 2",
        ),
        ({"cpus": 0}, "--cpus 0"),
        ({"cpus": 2, "engine": "slrm"}, "did you mean 'slurm'"),
        ({"cpus": 4, "nodes": "2"}, "can start one node only"),
        ({"nodes": "2", "engine": "slurm"}, "state the number of ranks"),
        ({"gpus": "16", "nodes": "2x4", "engine": "slurm"}, "--nodes 2x4 has 8 ranks"),
        ({"cpus": 3, "nodes": "2x2", "engine": "emulated"}, "--nodes 2x2 has 4 ranks"),
    ],
)
def test_contradicting_options_are_one_clear_error(options: dict[str, object], wrong: str) -> None:
    with pytest.raises(SpecError) as error:
        resolve(known_engines=ENGINES, **options)  # type: ignore[arg-type]
    assert wrong in str(error.value) and error.value.fix
