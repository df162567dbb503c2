"""Errors in users' files are all reported, with their lines. Any module can be trained whole."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue, Device, Site
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.record import Described

GOOD = """
    from torch import nn
    from torch.nn import functional
    from harness import labels, uniform
    SIZES = {"small": dict(d=64, batch=8)}
    class Net(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.head, self.body = nn.Linear(d, 10), nn.Linear(d, d)
        def forward(self, x):
            return self.head(self.body(x) + x)
    def build(size): return Net(size["d"])
    def batch(ids, size): return uniform(ids, size["d"]), labels(ids, 10)
    def loss(output, targets): return functional.cross_entropy(output, targets)
    def flops(size): return 0.0
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return ``asked(text, strategy)``, which returns an agent's description of a model's file."""
    fleet, count = open_worlds(Catalogue().get("engines", "local"), Where()), iter(range(99))

    def describe(text: str, strategy: str = "ddp") -> tuple[Described, Path]:
        folder = tmp_path_factory.mktemp(f"mine{next(count)}")
        file = folder / "net.py"
        file.write_text('"""Mine."""\n' + textwrap.dedent(text))
        known = Catalogue([folder])
        ranks = 1 if strategy == "single" else 2
        site = Site(device=Device.CPU, backend="gloo", nodes=(ranks,))
        case = known.normalise(site.case(f"{strategy}/net-small"))
        return fleet.describe([(case, known.files(case))])[0], file

    yield describe
    fleet.close()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("def build(size): return Net(size[\"d\"])", "", ["net.py has no build(size)"]),
        ("def batch(ids, size)", "def batch(ids)", ["net.py:14", "batch(ids) cannot be called as batch(ids, size)"]),
        ("def build(size): return Net(size[\"d\"])", "def build(size): Net(size[\"d\"])", ["returned NoneType, not an nn.Module"]),
        ("def loss(output, targets): return", "def loss(output): return", ["loss(output) cannot be called as"]),
        ("return self.head(self.body(x) + x)", "return self.head(self.tail(x))", ["no attribute 'tail'", "net.py:12"]),
        ("from harness import labels, uniform", "import nothing_like_this", ["nothing_like_this", "net.py:5"]),
    ],
)  # fmt: skip
def test_an_error_is_reported_with_its_line(
    asked: Any, old: str, new: str, says: list[str]
) -> None:
    assert old in GOOD
    described, _ = asked(
        GOOD.replace(old, new).replace("flops(size): return 0.0", "flops(size): return 1.0")
    )
    for text in says:
        assert text in described.error, described


def test_all_errors_are_reported_at_once(asked: Any) -> None:
    text = GOOD.replace("def loss(output, targets)", "def lose(output, targets)")
    described, _ = asked(text.replace("def batch(ids, size)", "def batch()"))
    assert "has no loss(output, targets)" in described.error and "batch()" in described.error


def test_a_pipeline_reports_that_it_needs_a_sequential(asked: Any) -> None:
    described, _ = asked(GOOD, "pipeline")
    assert (
        "a pipeline expects an nn.Sequential" in described.unsupported
        and "Net" in described.unsupported
    )


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_any_module_is_accepted_if_it_is_not_split(asked: Any, strategy: str) -> None:
    described, _ = asked(GOOD, strategy)
    assert described.error == "" and described.expected is not None
    assert described.expected.module in ("Net", "DistributedDataParallel", "FSDPNet")


#: The output of a failed kernel assertion on an H100.
KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0],"
    ' thread: [0,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of'
    ' bounds"` failed.'
)


def test_a_kernels_assertion_is_reported_instead_of_the_later_error(
    tmp_path: Path,
) -> None:
    error = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`"
    program = (
        "from pathlib import Path; from harness.training.contract import placed_below\n"
        f"print(placed_below(RuntimeError({error!r}), Path('/nowhere')))\n"
        "print(placed_below(ValueError('no such key'), Path('/nowhere')))"
    )
    for wrote, first in ((KERNEL, "index out of bounds"), ("epoch 1", "CUBLAS_STATUS")):
        log = tmp_path / "rank0.log"
        log.write_text(wrote + "\n")
        with log.open("a") as file:
            done = subprocess.run(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=file, text=True,
                check=True,
            )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines[0].startswith("RuntimeError: ") and first in lines[0]
        assert lines[1] == "ValueError: no such key"
