"""Device meshes: positions of ranks, shards, other world sizes, and invalid meshes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import SpecError
from harness.cases import DATA, Catalogue, Device, Dim, Mesh, Site
from harness.cases.recipes import plain

SITE = Site(device=Device.CPU, backend="gloo", nodes=(4,))
SIZES = st.dictionaries(st.sampled_from(Dim), st.integers(2, 4), min_size=1, max_size=4)


def test_positions_equal_those_of_torch() -> None:
    """Ranks are laid out row-major with the last dimension innermost, as by ``init_device_mesh``."""
    mesh = Mesh.parse("dp:2,tp:4")
    assert [mesh.place(r, Dim.TP) for r in range(8)] == [0, 1, 2, 3] * 2
    assert [mesh.place(r, Dim.DP) for r in range(8)] == [0] * 4 + [1] * 4
    assert [mesh.shard(r) for r in range(8)] == [0] * 4 + [1] * 4


@given(SIZES)
def test_a_mesh_survives_formatting_and_parsing(sizes: dict[Dim, int]) -> None:
    mesh = Mesh(sizes)
    assert Mesh.parse(str(mesh)) == mesh
    assert list(Mesh.parse(str(mesh)).sizes) == list(sizes), (
        "the order of dimensions defines the order of ranks"
    )


@given(SIZES)
def test_positions_of_ranks_are_unique_and_shards_are_equal(sizes: dict[Dim, int]) -> None:
    mesh = Mesh(sizes)
    places = {tuple(mesh.place(r, dim) for dim in sizes) for r in range(mesh.ranks)}
    assert len(places) == mesh.ranks
    shards = [mesh.shard(r) for r in range(mesh.ranks)]
    assert {shards.count(s) for s in range(mesh.shards)} == {mesh.ranks // mesh.shards}


@given(SIZES, st.integers(1, 64))
def test_another_world_size_changes_the_data_parallel_dimension(
    sizes: dict[Dim, int], world: int
) -> None:
    mesh, other = Mesh(sizes), Mesh(sizes).at(world)
    assert other.ranks == world
    free = next((d for d in sizes if d in DATA), next(iter(sizes)))
    kept = [d for d in sizes if d is not free]
    assert all(mesh.size(d) % other.size(d) == 0 for d in kept)
    if world % math.prod(mesh.size(d) for d in kept) == 0:
        assert all(mesh.size(d) == other.size(d) for d in kept)
    assert mesh.at(mesh.ranks) == mesh


def test_a_mesh_has_one_canonical_spelling() -> None:
    known = Catalogue()

    def mesh(text: str) -> str:
        return known.normalise(SITE.case("fsdp/mlp-nano", mesh=text)).mesh

    assert mesh("fsdp:4") == mesh("dp:1,fsdp:4") == "", "this mesh is FSDP's default"
    assert mesh("dp:2,fsdp:2") == "dp:2,fsdp:2"


@pytest.mark.parametrize(
    ("strategy", "mesh", "says", "fix"),
    [
        ("fsdp", "tp:4", "no dimension 'tp'", "mesh=fsdp:4"),
        ("fsdp", "dp:2,fsdp:4", "has 8 ranks, but the world has 4", "mesh=fsdp:4"),
        ("fsdp", "dp:2;fsdp:2", "'dp:2;fsdp:2' is not DIM:SIZE", "mesh=fsdp:4"),
        ("fsdp", "dp:0", "'dp:0' is not DIM:SIZE", "mesh=fsdp:4"),
        ("ddp", "dp:2,dp:2", "is not DIM:SIZE", "mesh=dp:4"),
    ],
)
def test_invalid_meshes_are_refused_with_a_fix(
    strategy: str, mesh: str, says: str, fix: str
) -> None:
    with pytest.raises(SpecError) as caught:
        Catalogue().normalise(SITE.case(f"{strategy}/mlp-nano", mesh=mesh))
    assert says in caught.value.what and fix in (caught.value.fix or "")


def test_a_plain_baseline_has_no_mesh() -> None:
    case = SITE.case("fsdp/mlp-nano", mesh="dp:2,fsdp:2")
    assert plain(case).mesh == "" and case.at(1).mesh == ""
    assert case.id.endswith("@4cpu+mesh=dp:2,fsdp:2")
    assert case.pytest_id.endswith("mesh_dp_2,fsdp_2")
