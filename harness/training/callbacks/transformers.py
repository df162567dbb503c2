"""Provide a callback for the Trainer of transformers and its subclasses, such as trl's.

Trainer(..., callbacks=[harness.transformers_callback(steps=50)])
"""

from typing import Any

from harness.training.script.recording import Recording


def transformers_callback(name: str = "", **window: Any) -> Any:
    """Return a ``TrainerCallback`` that records one window of the training.

    ``window`` takes the arguments of ``measure_steps``. On rank 0, ``recording.run`` of the
    callback is the folder of the record.

    Raises:
        ImportError: if transformers is not installed.
    """
    from transformers import TrainerCallback

    class TransformersRecording(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """A callback that records from the start of the Trainer until its end."""

        def __init__(self) -> None:
            self.recording = Recording(name, **window)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.recording.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.recording.end()

    return TransformersRecording()
