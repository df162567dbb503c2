"""Answer questions about cases and devices in forked children of the agent.

The agent itself imports no user's file and starts no driver.
"""

import gc
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError
from harness.cases import CaseSpec
from harness.host import cores, environment, machine, nvml
from harness.host.accelerators import Accelerators, torch_build
from harness.host.doctor import examination
from harness.record import Described
from harness.training.accelerator import survey
from harness.training.context import load
from harness.training.contract import placed, problems
from harness.training.describe import describe
from harness.training.observe import threads

#: Longest time for an answer in s. A child must import a user's files in this time, and build a
#: model on meta tensors.
DESCRIBE_S = 60.0
#: Cases with equal values in all of these fields share most of the computed facts.
MODEL = ("model", "size", "seq_len", "precision", "checkpoint")


def in_child(function: Callable[[], Json]) -> Json:
    """Call a function in a forked child, and return ``{"ok": result}`` or ``{"error": message}``.

    The agent thus never imports a user's files. The output of these files is discarded, and a child
    that does not answer is killed.
    """
    return in_children([function])[0]


def in_children(functions: Sequence[Callable[[], Json]]) -> list[Json]:
    """Call each function in a forked child, and return the answers in the same order.

    At most one child per available core runs at a time.
    """
    left = dict(enumerate(functions))
    answers: dict[int, Json] = {}
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        while left or children:
            while left and len(children) < len(os.sched_getaffinity(0)):
                number = next(iter(left))
                children[number] = _begin(left.pop(number))
                selector.register(children[number].reader, selectors.EVENT_READ, number)
            first = min(child.deadline for child in children.values())
            for key, _ in selector.select(max(0.0, first - time.monotonic())):
                children[key.data].hear()
            now = time.monotonic()
            for number in [n for n, c in children.items() if c.closed or c.deadline < now]:
                child = children.pop(number)
                selector.unregister(child.reader)
                answers[number] = child.answer()
    return [answers[number] for number in range(len(functions))]


@dataclass
class _Child:
    """A forked process that writes one answer. ``text`` holds the bytes that have arrived so far.

    ``reader`` is the reading end of the pipe, and ``closed`` is True when the child has closed it.
    ``deadline`` is the time in s of the monotonic clock until which the child must answer.
    """

    pid: int
    reader: int
    deadline: float
    text: bytes = b""
    closed: bool = False

    def hear(self) -> None:
        """Read what the child has written, and notice whether it has closed the pipe."""
        chunk = os.read(self.reader, 1 << 16)
        self.text += chunk
        self.closed = not chunk

    def answer(self) -> Json:
        """Kill the child, and return its answer, or an error if the answer is incomplete."""
        os.close(self.reader)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        try:
            return json.loads(self.text)
        except ValueError:
            return {
                "error": f"the case's files crashed, or took more than {DESCRIBE_S:.0f} s to answer"
            }


def _begin(function: Callable[[], Json]) -> _Child:
    """Fork a child that calls a function and writes its answer as JSON into a pipe."""
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        # Torch's objects stay alive. Searching them for garbage would cost a tenth of the time.
        gc.freeze()
        try:
            threads.die_with_parent(agent)
            os.close(reader)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            try:
                answer = {"ok": function()}
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(pid=pid, reader=reader, deadline=time.monotonic() + DESCRIBE_S)


def describe_all(requests: Sequence[Mapping[str, Json]]) -> list[Json]:
    """Return the descriptions of these cases in order.

    A case whose file cannot be imported has a description with an error. If a child crashes with
    several cases, each of them is described in a separate child.
    """
    answers: dict[int, Json] = {}
    parts = _parts(requests)
    while parts:
        asked = [partial(_describe, [requests[i] for i in part]) for part in parts]
        alone = []
        for part, answer in zip(parts, in_children(asked), strict=True):
            if "ok" in answer:
                answers |= dict(zip(part, answer["ok"], strict=True))
            elif len(part) > 1:  # one case of the part crashed: describe each one separately
                alone += [[i] for i in part]
            else:
                answers[part[0]] = to_doc(Described(error=answer["error"]))
        parts = alone
    return [answers[i] for i in range(len(requests))]


def _parts(requests: Sequence[Mapping[str, Json]]) -> list[list[int]]:
    """Divide the requests among children, and return the indices of the requests of each child.

    Cases of the same model go to the same child, because they share the facts of the model. Cases
    that load the same user files go to the same child, because they share the imports. Models are
    distributed over all cores.
    """
    by_files: dict[str, list[int]] = {}
    by_model: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        theirs = {key: name for key, name in request["files"].items() if name.endswith(".py")}
        if theirs:
            by_files.setdefault(json.dumps(theirs, sort_keys=True), []).append(i)
        else:
            model = str([request["case"].get(name) for name in MODEL])
            by_model.setdefault(model, []).append(i)
    models = list(by_model.values())
    cores = min(len(models), len(os.sched_getaffinity(0)))
    shared = [[i for model in models[core::cores] for i in model] for core in range(cores)]
    return [*shared, *by_files.values()]


def _describe(requests: Sequence[Mapping[str, Json]]) -> Json:
    """Return the descriptions of these cases in order."""
    return [
        _described(from_doc(CaseSpec, request["case"]), request["files"]) for request in requests
    ]


def _described(case: CaseSpec, files: Mapping[str, str]) -> Json:
    """Return the description of one case, its error, or the reason why it is not supported."""
    try:
        loaded = load(files)
    except Exception as error:
        return to_doc(Described(error=placed(error, files)))
    coded = loaded.codec is not None
    if wrong := [
        text
        for kind, module in loaded.modules.items()
        for text in problems(kind, module, compressed=coded)
    ]:
        return to_doc(Described(error="; ".join(wrong)))
    try:
        if lacks := [package for package in loaded.supports.packages if not _installed(package)]:
            message = (
                f"needs {' and '.join(lacks)} on the nodes of its ranks:"
                f" pip install {' '.join(lacks)}"
            )
            return to_doc(Described(unsupported=message))
        if case.power_cap_w and (why := nvml.refused_power_cap(case.power_cap_w)):
            return to_doc(Described(unsupported=f"power_cap_w={case.power_cap_w}: {why}"))
        return to_doc(describe(loaded, case))
    except Exception as error:
        return to_doc(Described(error=placed(error, files)))


def _installed(package: str) -> bool:
    """Return whether a package is installed here, without regard to extras as in ``ray[train]``."""
    try:
        metadata.version(package.partition("[")[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def observed() -> dict[str, Json]:
    """Return the facts of this machine: fields of ``wire.messages.Node``, and ``near``.

    ``near`` lists the CPUs next to each GPU. A forked child collects the facts, because NVML's
    library may start threads that would remain in the agent.
    """
    here: dict[str, Json] = answered(
        lambda: {
            "machine": to_doc(machine.detect()),
            "software": machine.software(),
            "environment": environment.of_backends(),
            "facts": machine.facts(),
            "near": [sorted(cpus) for cpus in cores.near_gpus()],
        }
    )
    return here


def examined() -> Json:
    """Return the current state of this machine. A forked child examines it."""
    return answered(examination)


def answered(function: Callable[[], Json]) -> Json:
    """Call a function in a forked child, and return its result. Raise LaunchError if it fails."""
    answer = in_child(function)
    if "error" in answer:
        raise LaunchError(
            answer["error"],
            where="agent",
            expected="a machine whose properties can be read",
            fix="scaleproof check",
        )
    return answer["ok"]


def usable() -> Accelerators:
    """Return the GPUs that ranks can use here.

    A forked child looks for them, because this process must not start a driver.
    """
    build = torch_build()
    if not build.startswith(("cuda", "hip")):
        return Accelerators(build=build)
    answer = in_child(lambda: to_doc(survey(build)))
    if "error" in answer:
        return Accelerators(build=build, error=answer["error"])
    return from_doc(Accelerators, answer["ok"])
