"""The site: what this run may use. Recipes turn it into plans, so suites name no machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness import machine, nvml
from harness.errors import SpecError
from harness.spec import CaseSpec, Device, Mode, StandIn


@dataclass(frozen=True, kw_only=True)
class Site:
    """Device, backend and the largest world that may be launched.

    ``emulated``: several nodes that are all on this machine, a stand-in for a network.
    """

    device: Device
    backend: str
    nodes: tuple[int, ...]
    engine: str = "local"
    shared_gpu: bool = False
    emulated: bool = False

    @property
    def world_size(self) -> int:
        """Ranks of the largest world."""
        return sum(self.nodes)

    @property
    def worlds(self) -> tuple[int, ...]:
        """The rungs: powers of two up to the largest world, and that world itself."""
        return rungs(self.world_size)

    def shape(self, world_size: int) -> tuple[int, ...]:
        """Ranks per node of a smaller world: nodes are filled in order."""
        left, out = world_size, []
        for ranks in self.nodes:
            if left <= 0:
                break
            out.append(min(ranks, left))
            left -= out[-1]
        return tuple(out) if left <= 0 else (world_size,)

    def case(self, name: str, mode: Mode | str = Mode.WEAK, **fields: Any) -> CaseSpec:
        """The case ``ddp/decoder-tiny`` (or ``compressed:topk/mlp-small``) on the full world."""
        strategy, compressor, model, size = parse_name(name)
        stand_in = set()
        if self.shared_gpu:
            stand_in.add(StandIn.SHARED_GPU)
        if self.emulated:
            stand_in.add(StandIn.EMULATED)
        base = CaseSpec(
            strategy=strategy,
            compressor=compressor,
            model=model,
            size=size,
            mode=Mode(mode),
            world_size=self.world_size,
            nodes=self.nodes,
            device=self.device,
            backend=self.backend,
            stand_in=frozenset(stand_in),
        )
        return replace(base, **fields)

    def cpu(self, world_size: int) -> Site:
        """A CPU site of that many ranks on one node: where stand-ins run, whatever the machine."""
        return Site(device=Device.CPU, backend="gloo", nodes=(world_size,), engine=self.engine)


def parse_name(name: str) -> tuple[str, str | None, str, str]:
    """``ddp/decoder-tiny`` -> strategy, compressor, model, size."""
    head, _, tail = name.partition("/")
    strategy, _, compressor = head.partition(":")
    model, _, size = tail.partition("-")
    if not (strategy and model and size):
        raise SpecError(
            f"{name!r} is not a case",
            expected="strategy[:compressor]/model-size[/mode], as ddp/decoder-tiny/weak",
            fix="scaleproof list",
        )
    return strategy, compressor or None, model, size


def rungs(largest: int) -> tuple[int, ...]:
    """1, 2, 4 .. up to ``largest``, which is always there (6 -> 1, 2, 4, 6)."""
    out = [1]
    while out[-1] * 2 <= largest:
        out.append(out[-1] * 2)
    return (*out, largest) if out[-1] != largest else tuple(out)


def resolve(
    *,
    gpus: str | None = None,
    cpus: int | None = None,
    nodes: int = 1,
    engine: str = "local",
    shared_gpu: bool = False,
    known_engines: Mapping[str, Any],
) -> Site:
    """The site that the options ask for; without options, whatever the machine has."""
    if engine not in known_engines:
        raise SpecError(
            f"--engine {engine}: no such engine",
            expected=", ".join(known_engines),
            fix="scaleproof list engines",
        )
    if gpus is not None and cpus is not None:
        raise SpecError("--gpus and --cpus exclude each other", fix="--gpus auto")
    if nodes < 1:
        raise SpecError(f"--nodes {nodes}", expected="at least 1", fix="--nodes 1")
    if nodes > 1 and not known_engines[engine].head["ENGINE"].get("multi_node"):
        several = [n for n, e in known_engines.items() if e.head["ENGINE"].get("multi_node")]
        raise SpecError(
            f"--engine {engine} starts one node only, --nodes {nodes} was asked for",
            expected=f"--engine {' or '.join(several)}",
            fix=f"--engine {several[0]} --nodes {nodes}",
        )
    emulated = nodes > 1 and bool(known_engines[engine].head["ENGINE"].get("one_machine"))
    found = len(nvml.gpus())
    if cpus is None and gpus is None:
        gpus = str(found) if found else None
    if gpus is None:
        total = cpus if cpus is not None else max(machine.physical_cores(), nodes)
        shape = _split(total, nodes, "--cpus")
        return Site(
            device=Device.CPU, backend="gloo", nodes=shape, engine=engine, emulated=emulated
        )
    if gpus != "auto" and not gpus.isdigit():
        raise SpecError(f"--gpus {gpus}", expected="a number or 'auto'", fix="--gpus auto")
    wanted = found - found % nodes if gpus == "auto" else int(gpus)
    if wanted > found and not (shared_gpu and found):
        raise SpecError(
            f"--gpus {gpus}: only {found} usable GPUs on this node",
            expected=f"at most {found} (CUDA_VISIBLE_DEVICES may hide some)",
            fix=f"--gpus {found}" if found else "--cpus 2",
        )
    if wanted == 0:
        raise SpecError(
            "--gpus auto: no usable GPU here", expected="an NVIDIA driver and a GPU", fix="--cpus 2"
        )
    return Site(
        device=Device.CUDA,
        backend="gloo" if shared_gpu else "nccl",
        nodes=_split(wanted, nodes, "--gpus"),
        engine=engine,
        shared_gpu=shared_gpu,
        emulated=emulated,
    )


def _split(total: int, nodes: int, option: str) -> tuple[int, ...]:
    if total < 1 or total % nodes:
        raise SpecError(
            f"{option} {total} over --nodes {nodes}",
            expected=f"at least 1, and a multiple of {nodes}",
            fix=f"{option} {max(nodes, total - total % nodes)}",
        )
    return (total // nodes,) * nodes
