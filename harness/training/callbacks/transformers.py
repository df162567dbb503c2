"""A callback for the Trainer of transformers, and for what is made of it, as trl.

Trainer(..., callbacks=[harness.transformers_callback(steps=50)])
"""

from typing import Any

from harness.training.script.recording import Recording


def transformers_callback(name: str = "", **window: Any) -> Any:
    """A ``TrainerCallback`` that records one window of the training; ``window`` as of
    ``measure_steps``. Its ``recording.run`` is the record's folder, on rank 0.

    Raises:
        ImportError: without transformers.
    """
    from transformers import TrainerCallback

    class TransformersRecording(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Begins as the Trainer does; ends with it."""

        def __init__(self) -> None:
            self.recording = Recording(name, **window)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.recording.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.recording.end()

    return TransformersRecording()
