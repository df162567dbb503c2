"""Provide a callback for Lightning's Trainer.

Trainer(..., callbacks=[harness.lightning_callback(steps=50)])
"""

import functools
import importlib
import importlib.util
from typing import Any

from harness.training.script.recording import Recording


def lightning_callback(name: str = "", **window: Any) -> Any:
    """Return a ``Callback`` that records one window of the training.

    ``window`` takes the arguments of ``measure_steps``. On rank 0, ``recording.run`` of the
    callback is the folder of the record.

    Raises:
        ImportError: if neither lightning nor pytorch_lightning is installed.
    """
    whole = importlib.util.find_spec("lightning") is not None
    library = importlib.import_module("lightning.pytorch" if whole else "pytorch_lightning")
    Callback: Any = library.Callback

    class LightningRecording(Callback):  # type: ignore[misc]
        """A callback that records from the start of the Trainer until it ends or fails."""

        def __init__(self) -> None:
            self.recording = Recording(name, **window)

        def __reduce__(self) -> tuple[Any, ...]:
            """Pickle the call that makes the callback, because Lightning may spawn the ranks."""
            return functools.partial(lightning_callback, name, **window), ()

        def on_fit_start(self, *_: Any) -> None:
            self.recording.prepare()  # the Trainer makes loaders before the training starts

        def on_train_start(self, *_: Any) -> None:
            self.recording.begin()

        def on_train_end(self, *_: Any) -> None:
            self.recording.end()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self.recording.end(exception)

    return LightningRecording()
