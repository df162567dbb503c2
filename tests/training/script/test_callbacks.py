"""Callbacks for other frameworks record a training run with one line, in the real packages."""

from __future__ import annotations

import importlib.machinery
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

import harness
from harness.analysis.reading import load
from harness.analysis.verify import verify

ROOT = Path(__file__).parents[3]
DATA = """
import torch, harness
from torch import nn
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(16, generator=g), "labels": torch.randn(4, generator=g)}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    def forward(self, x, labels=None):
        return {"loss": nn.functional.mse_loss(self.layers(x), labels)}
window = dict(steps=10, warm_up=4, results="results")
"""
#: Package -> a training script with the callback, whose batch is 8 on each rank.
TRAININGS = {
    "transformers": """
from transformers import Trainer, TrainingArguments
mine = harness.transformers_callback("mine", **window)
arguments = TrainingArguments("out", per_device_train_batch_size=8, max_steps=30, report_to="none",
                              use_cpu=True, save_strategy="no")
Trainer(Model(), arguments, train_dataset=Rows(), callbacks=[mine]).train()
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, number):
        return self.model(**batch)["loss"]
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
mine = harness.lightning_callback("mine", **window)
trainer = lightning.Trainer(max_steps=30, accelerator="cpu", devices=DEVICES, strategy=STRATEGY,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[mine])
trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=8))
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
harness.accelerate_recording(accelerator, "mine", **window)
model = Model()
loader = torch.utils.data.DataLoader(Rows(), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for step, batch in zip(range(30), loader):
    optimizer.zero_grad()
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
accelerator.end_training()
""",
}


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("package", sorted(TRAININGS))
def test_one_line_records_a_training_run(package: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip(package)
    words = [sys.executable, "train.py"]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [sys.executable, *launcher, "train.py"]
    settings = f"DEVICES, STRATEGY = {ranks}, {'ddp' if ranks > 1 else 'auto'!r}\n"
    (tmp_path / "train.py").write_text(DATA + settings + TRAININGS[package])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "results").glob("runs/*/*")
    run = load(folder)
    (launch,) = run.launches
    assert launch.usable and launch.steps is not None, (launch.wrong, launch.cause)
    assert len(launch.ranks) == ranks
    assert (launch.steps.count, launch.consumed) == (10, 10 * 8 * ranks)
    assert verify(run, folder).differences == ()


#: A usual Lightning module with batches of inputs and targets.
PAIRS = """
import sys, torch, lightning, harness
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
    def training_step(self, batch, number):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
if __name__ == "__main__":
    mine = harness.lightning_callback("mine", steps=10, warm_up=4, results="results")
    rows = torch.utils.data.TensorDataset(torch.randn(4000, 16), torch.randn(4000, 4))
    trainer = lightning.Trainer(max_steps=30, accelerator="cpu", devices=2, strategy=sys.argv[1],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[mine])
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    trainer.fit(Module(), loader, torch.utils.data.DataLoader(rows, batch_size=6))
"""


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_pairs_are_counted_however_lightning_starts_its_ranks(
    strategy: str, tmp_path: Path
) -> None:
    """Lightning iterates the loaders before training, also for its sanity check."""
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(PAIRS)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "train.py", strategy]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "results").glob("runs/*/*")
    (launch,) = load(folder).launches
    assert launch.usable, (launch.wrong, launch.cause)
    assert launch.consumed == 10 * 8 * 2


def test_lightnings_callback_reaches_ranks_that_are_spawned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spawned ranks get the callback pickled. The test simulates Lightning's modules."""
    library = types.ModuleType("lightning.pytorch")
    vars(library)["Callback"] = object
    whole = types.ModuleType("lightning")
    whole.__spec__ = importlib.machinery.ModuleSpec("lightning", None)
    monkeypatch.setitem(sys.modules, "lightning", whole)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", library)
    mine = harness.lightning_callback("mine", steps=7, warm_up=3)
    given = pickle.loads(pickle.dumps(mine))
    assert given.recording.name == "mine" and given.recording is not mine.recording


@pytest.mark.parametrize("make", ["transformers_callback", "lightning_callback"])
def test_a_package_that_is_missing_is_an_import_error(
    make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning")
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        getattr(harness, make)()
