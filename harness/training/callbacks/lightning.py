"""A callback for Lightning's Trainer.

Trainer(..., callbacks=[harness.lightning_callback(steps=50)])
"""

import functools
import importlib
import importlib.util
from typing import Any

from harness.training.script.recording import Recording


def lightning_callback(name: str = "", **window: Any) -> Any:
    """A ``Callback`` that records one window of the training; ``window`` as of ``measure_steps``.
    Its ``recording.run`` is the record's folder, on rank 0.

    Raises:
        ImportError: without lightning and pytorch_lightning.
    """
    whole = importlib.util.find_spec("lightning") is not None
    library = importlib.import_module("lightning.pytorch" if whole else "pytorch_lightning")
    Callback: Any = library.Callback

    class LightningRecording(Callback):  # type: ignore[misc]
        """Begins as the Trainer does; ends with it, also where it breaks."""

        def __init__(self) -> None:
            self.recording = Recording(name, **window)

        def __reduce__(self) -> tuple[Any, ...]:
            """As what makes it: so it reaches ranks that Lightning spawns."""
            return functools.partial(lightning_callback, name, **window), ()

        def on_fit_start(self, *_: Any) -> None:
            self.recording.prepare()  # its loaders are asked before the training starts

        def on_train_start(self, *_: Any) -> None:
            self.recording.begin()

        def on_train_end(self, *_: Any) -> None:
            self.recording.end()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self.recording.end(exception)

    return LightningRecording()
