"""One line for accelerate, whose trackers begin on the main process alone.

accelerator = Accelerator()
harness.accelerate_recording(accelerator, steps=50)
"""

import functools
from typing import Any

from harness.training.script.recording import Recording


def accelerate_recording(accelerator: Any, name: str = "", **window: Any) -> Recording:
    """Record one window of an ``Accelerator``'s training, from here to its ``end_training``.

    ``window`` is as of ``measure_steps``; ``run`` of the answer is the record's folder, on rank 0.
    """
    recording = Recording(name, **window)
    end_training = accelerator.end_training

    @functools.wraps(end_training)
    def ended(*args: Any, **more: Any) -> Any:
        recording.end()
        return end_training(*args, **more)

    accelerator.end_training = ended
    recording.begin()
    return recording
