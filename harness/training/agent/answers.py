"""What an agent is asked of cases and devices, answered in forked children.

No file of a user's is imported into the agent, and no driver is started in it.
"""

import gc
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError
from harness.cases import CaseSpec
from harness.host import cores, environment, facts, machine, power
from harness.host.accelerators import Accelerators, torch_build
from harness.host.doctor import examination
from harness.record import Described
from harness.training.accelerator import survey
from harness.training.context import load
from harness.training.contract import placed, problems
from harness.training.describe import describe
from harness.training.observe import threads

DESCRIBE_S = 60.0  # importing a user's files and building a model on meta tensors


def in_child(function: Callable[[], Json]) -> Json:
    """Run in a forked child, so that a user's files are never imported into the agent.

    Whatever they print is dropped, and a child that does not answer is ended.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # torch's modules stay: to look at them again and again is a tenth of the time
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
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    deadline = time.monotonic() + DESCRIBE_S
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                chunk = os.read(reader, 1 << 16)
                text += chunk
                if not chunk:
                    break
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not text:
        return {"error": f"its files crashed, or took more than {DESCRIBE_S:.0f} s to answer"}
    return json.loads(text)


def describe_all(requests: list[dict[str, Json]]) -> list[Json]:
    """The answers in order; a file that cannot be imported makes its cases unsupported.

    Cases of the same files of users', and those of none, are asked in one process: they share what
    is known of a model, and what torch imports for it.
    """
    answers: dict[int, Json] = {}
    groups: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        theirs = {key: name for key, name in request["files"].items() if name.endswith(".py")}
        groups.setdefault(json.dumps(theirs, sort_keys=True), []).append(i)
    for group in groups.values():
        for part in (group, *([i] for i in group)):  # one that crashes does not take the others
            left = [i for i in part if i not in answers]
            answer = in_child(partial(_describe, [requests[i] for i in left])) if left else {}
            if len(left) > 1 and "error" in answer:
                continue
            unknown = [to_doc(Described(error=answer.get("error", "")))] * len(left)
            answers |= dict(zip(left, answer.get("ok", unknown), strict=True))
    return [answers[i] for i in range(len(requests))]


def _describe(requests: list[dict[str, Json]]) -> Json:
    """The answers to these, in order."""
    return [
        _described(from_doc(CaseSpec, request["case"]), request["files"]) for request in requests
    ]


def _described(case: CaseSpec, files: Mapping[str, str]) -> Json:
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
                f"needs {' and '.join(lacks)} where its ranks run: pip install {' '.join(lacks)}"
            )
            return to_doc(Described(unsupported=message))
        if case.power_cap_w and (why := power.refusal(case.power_cap_w)):
            return to_doc(Described(unsupported=f"power_cap_w={case.power_cap_w}: {why}"))
        return to_doc(describe(loaded, case))
    except Exception as error:
        return to_doc(Described(error=placed(error, files)))


def _installed(package: str) -> bool:
    """Whether pip knows of it here, ``ray[train]`` for example by its name."""
    try:
        metadata.version(package.partition("[")[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def observed() -> dict[str, Json]:
    """What there is to say of this machine: fields of ``wire.messages.Node``, and ``near``.

    Of a forked child: NVML's library may start threads of its own, and they would stay.
    """
    here: dict[str, Json] = answered(
        lambda: {
            "machine": to_doc(machine.detect()),
            "software": machine.software(),
            "environment": environment.of_backends(),
            "facts": facts.facts(),
            "near": [sorted(cpus) for cpus in cores.near_gpus()],
        }
    )
    return here


def examined() -> Json:
    """How this machine is now, as a forked child found it."""
    return answered(examination)


def answered(function: Callable[[], Json]) -> Json:
    """A forked child's answer; LaunchError where it gives none."""
    answer = in_child(function)
    if "error" in answer:
        raise LaunchError(
            answer["error"],
            where="agent",
            expected="a machine that can be examined",
            fix="scaleproof doctor",
        )
    return answer["ok"]


def usable() -> Accelerators:
    """The GPUs that ranks can use here, as a forked child found them: this process starts none."""
    build = torch_build()
    if not build.startswith("cuda"):
        return Accelerators(build=build)
    answer = in_child(lambda: to_doc(survey(build)))
    if "error" in answer:
        return Accelerators(build=build, error=answer["error"])
    return from_doc(Accelerators, answer["ok"])
