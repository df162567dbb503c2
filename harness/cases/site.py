"""The site: the devices that a run may use.

Recipes make plans for a site, so suites do not need to name a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields as dataclass_fields, replace
from typing import Any

from harness.base.errors import SpecError, nearest
from harness.cases.case import CaseSpec, Device, Mode, StandIn
from harness.cases.catalogue import Entry
from harness.cases.heads import EngineFacts
from harness.host import accelerators, environment, machine, vendor


@dataclass(frozen=True, kw_only=True)
class Site:
    """The device, the backend and the largest world that may be launched.

    ``nodes`` is the number of ranks on each node. ``emulated`` states that several nodes are
    simulated on one machine. ``faults`` lists the faults that the engine can inject, in addition to
    crash and hang. ``gpu_memory_gib`` is the memory of one GPU in GiB, or None if it is unknown;
    recipes choose model sizes by it. ``compiles`` states that a C compiler is installed, which
    Inductor needs. ``every_rung`` states that scaling sweeps judge every world size and not only
    the largest.
    """

    device: Device
    backend: str
    nodes: tuple[int, ...]
    engine: str = "local"
    shared_gpu: bool = False
    emulated: bool = False
    faults: tuple[str, ...] = ()
    gpu_memory_gib: int | None = None
    compiles: bool = True
    every_rung: bool = False

    @property
    def world_size(self) -> int:
        """The number of ranks of the largest world."""
        return sum(self.nodes)

    @property
    def worlds(self) -> tuple[int, ...]:
        """The world sizes of a scaling sweep: all powers of two, and the largest world."""
        return rungs(self.world_size)

    def shape(self, world_size: int) -> tuple[int, ...]:
        """Return the ranks on each node of a smaller world. Nodes are filled in order."""
        return filled(self.nodes, world_size) or (world_size,)

    def case(self, name: str, mode: Mode | str = Mode.WEAK, **fields: Any) -> CaseSpec:
        """Return the case of this name on all ranks of the site.

        The name has the form ``ddp/decoder-tiny`` or ``compressed:topk/mlp-small``. ``fields`` are
        further fields of the case. Raises SpecError for an unknown mode or field.
        """
        if mode not in set(Mode):
            raise SpecError(
                f"no mode {str(mode)!r}{nearest(str(mode), Mode)}",
                where=f"{name}/{mode}",
                expected=" or ".join(Mode),
                fix=f"{name}/{Mode.WEAK}",
            )
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
            environment=environment.of_backends(self.backend) or None,
        )
        known = [field.name for field in dataclass_fields(CaseSpec)]
        for unknown in (name for name in fields if name not in known):
            raise SpecError(
                f"{name}: a case has no field {unknown!r}{nearest(unknown, known)}",
                expected=", ".join(known),
                fix="scaleproof run list",
            )
        return replace(base, **fields)

    def fabric(self, nodes: tuple[int, ...], knobs: Mapping[str, Any]) -> CaseSpec:
        """Return the case of a measurement of collectives, which has a world but no training."""
        case = self.case("fabric/collectives-sweep", knobs=dict(knobs))
        return case.at(sum(nodes), nodes)

    def cpu(self, world_size: int) -> Site:
        """Return a CPU site with this many ranks on one node.

        Models with simulated compute can run on such a site on any machine.
        """
        return Site(device=Device.CPU, backend="gloo", nodes=(world_size,), engine=self.engine)


def parse_name(name: str) -> tuple[str, str | None, str, str]:
    """Split a name like ``ddp/decoder-tiny`` into strategy, compressor (or None), model, size."""
    head, _, tail = name.partition("/")
    strategy, _, compressor = head.partition(":")
    model, _, size = tail.partition("-")
    if not (strategy and model and size):
        raise SpecError(
            f"{name!r} is not a case",
            expected="strategy[:compressor]/model-size[/mode], for example ddp/decoder-tiny/weak",
            fix="scaleproof run list",
        )
    return strategy, compressor or None, model, size


def filled(nodes: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the number of ranks on each node if ``ranks`` ranks fill the nodes in order.

    ``nodes`` is the number of ranks that each node can hold. The result is empty if they cannot
    hold all ranks.
    """
    layout = list[int]()
    for room in nodes:
        if sum(layout) < ranks:
            layout.append(min(room, ranks - sum(layout)))
    return tuple(layout) if sum(layout) == ranks else ()


def rungs(largest: int, smallest: int = 1) -> tuple[int, ...]:
    """Return ``smallest`` times all powers of two, then ``largest`` (6 -> 1, 2, 4, 6)."""
    sizes = [smallest]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return (*sizes, largest) if sizes[-1] != largest else tuple(sizes)


def resolve(  # noqa: PLR0913  (the options of a site)
    *,
    gpus: str | None = None,
    cpus: int | None = None,
    nodes: str = "1",
    engine: str = "local",
    shared_gpu: bool = False,
    one_machine: bool = False,
    elsewhere: bool = False,
    known_engines: Mapping[str, Entry],
) -> Site:
    """Return the site that the options describe. Without options it has all devices of the machine.

    ``nodes`` is a number of nodes, or the ranks on each node: ``4+8+16``, ``2x8``. If the engine
    starts ranks on other machines, the device options are not compared with this machine; agents
    check them before the first launch. They are not compared either if ``elsewhere`` is set,
    because nothing is launched on this machine.
    """
    if gpus is not None and cpus is not None:
        raise SpecError("--gpus and --cpus exclude each other", fix="--gpus auto")
    facts = _engine(engine, known_engines, nodes)
    anywhere = facts.remote or (elsewhere and gpus not in (None, "auto"))
    num_nodes, given = parse_nodes(nodes)
    if given and gpus in (None, "auto") and cpus is None:
        gpus, cpus = (str(sum(given)), None) if gpus else (None, sum(given))
    _same_total(nodes, given, gpus, cpus)
    if facts.remote and cpus is None and (gpus is None or not gpus.isdigit()):
        raise SpecError(
            f"--engine {engine} reaches other machines: state the number of ranks",
            expected="--gpus N or --cpus N",
            fix=f"--engine {engine} --nodes 2 --gpus 16",
        )
    num_gpus = len(vendor.gpus())
    if not anywhere:
        gpus = _here(gpus, num_gpus, cpus)
    several = num_nodes > 1 and (one_machine or facts.one_machine)
    site = Site(
        device=Device.CPU,
        backend="gloo",
        nodes=given,
        engine=engine,
        emulated=facts.always_emulated or several,
        faults=facts.faults,
    )
    if gpus is None:
        total = cpus if cpus is not None else max(machine.physical_cores(), num_nodes)
        return replace(site, nodes=given or _split(total, num_nodes, "--cpus"))
    wanted = _wanted_gpus(gpus, num_gpus, num_nodes, anywhere=anywhere, shared=shared_gpu)
    return replace(
        site,
        device=Device.CUDA,
        backend="gloo" if shared_gpu else "nccl",
        nodes=given or _split(wanted, num_nodes, "--gpus"),
        shared_gpu=shared_gpu,
        gpu_memory_gib=None if anywhere else machine.detect().gpu_memory_gib,
        compiles=anywhere or machine.c_compiler() is not None,
    )


def _same_total(nodes: str, given: tuple[int, ...], gpus: str | None, cpus: int | None) -> None:
    """Raise SpecError if ``--nodes`` has a different number of ranks than ``--gpus``/``--cpus``."""
    option, asked = ("--cpus", str(cpus)) if gpus is None else ("--gpus", gpus)
    if given and asked.isdigit() and int(asked) != sum(given):
        raise SpecError(
            f"{option} {asked}: --nodes {nodes} has {sum(given)} ranks",
            expected="both options have the same number of ranks",
            fix=f"--nodes {nodes} {option} {sum(given)}",
        )


def _here(gpus: str | None, num_gpus: int, cpus: int | None) -> str | None:
    """Return the value of ``--gpus``, or the number of GPUs here if no device option is given.

    Raises SpecError if torch cannot use the GPUs.
    """
    build = accelerators.torch_build()
    version = machine.software().get("torch", "")
    if cpus is None and not num_gpus:
        if (hidden := accelerators.hidden(build, version)) is not None:
            asked = f"--gpus {gpus}" if gpus else "the GPUs of this machine cannot be measured"
            raise SpecError(f"{asked}: {hidden.what}", expected=hidden.expected, fix=hidden.fix)
    unfit = accelerators.no_gpu(build, version, vendor.present().NAME) if num_gpus else None
    if gpus is not None and unfit is not None:
        raise SpecError(f"--gpus {gpus}: {unfit.what}", expected=unfit.expected, fix=unfit.fix)
    if cpus is None and gpus is None and num_gpus and unfit is None:
        return str(num_gpus)
    return gpus


def _engine(name: str, known: Mapping[str, Entry], nodes: str) -> EngineFacts:
    """Return the facts of an engine.

    Raise SpecError if it does not exist or cannot start this number of nodes.
    """
    if name not in known:
        raise SpecError(
            f"--engine {name}: no such engine{nearest(name, known)}",
            expected=", ".join(known),
            fix="scaleproof run list engines",
        )
    facts = known[name].engine
    if parse_nodes(nodes)[0] > 1 and not facts.multi_node:
        several = [name for name, entry in known.items() if entry.engine.multi_node]
        raise SpecError(
            f"--engine {name} can start one node only, but --nodes is {nodes}",
            expected=f"--engine {' or '.join(several)}",
            fix=f"--engine {several[-1]} --nodes {nodes}",
        )
    return facts


def _wanted_gpus(gpus: str, here: int, num_nodes: int, *, anywhere: bool, shared: bool) -> int:
    """Return the number of GPUs that ``--gpus`` requests.

    Raise SpecError if this machine has fewer.
    """
    if gpus != "auto" and not gpus.isdigit():
        raise SpecError(f"--gpus {gpus}", expected="a number or 'auto'", fix="--gpus auto")
    wanted = here - here % num_nodes if gpus == "auto" else int(gpus)
    if wanted == 0 or (here == 0 and not anywhere):
        raise SpecError(
            f"--gpus {gpus}: no usable GPU here",
            expected="an NVIDIA driver and a GPU",
            fix="--cpus 2",
        )
    if wanted > here and not shared and not anywhere:
        raise SpecError(
            f"--gpus {gpus}: only {here} usable GPUs on this node",
            expected=f"at most {here} (CUDA_VISIBLE_DEVICES may hide some)",
            fix=f"--gpus {here}",
        )
    return wanted


def parse_nodes(text: str) -> tuple[int, tuple[int, ...]]:
    """Parse ``--nodes`` into the number of nodes and the ranks on each (``4+8+16``, ``2x8``).

    The ranks are empty if the option is only a number. Raises SpecError for anything else.
    """
    shape: list[int] = []
    for part in text.split("+"):
        many, x, ranks = part.partition("x")
        if not many.isdigit() or (x and not ranks.isdigit()):
            raise SpecError(
                f"--nodes {text}",
                expected="a number of nodes, or the ranks on each node: 4+8+16, 2x8",
                fix="--nodes 2",
            )
        shape += [int(ranks)] * int(many) if x else [int(many)]
    if min(shape, default=0) < 1:
        raise SpecError(f"--nodes {text}", expected="at least 1", fix="--nodes 1")
    if "+" in text or "x" in text:
        return len(shape), tuple(shape)
    return shape[0], ()


def _split(total: int, nodes: int, option: str) -> tuple[int, ...]:
    """Divide the ranks equally over the nodes. Raise SpecError if there is a remainder."""
    if total < 1 or total % nodes:
        raise SpecError(
            f"{option} {total} does not divide over --nodes {nodes}",
            expected=f"at least 1, and a multiple of {nodes}",
            fix=f"{option} {max(nodes, total - total % nodes)}",
        )
    return (total // nodes,) * nodes
