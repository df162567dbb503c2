"""Record a training of accelerate with one line.

accelerator = Accelerator()
harness.accelerate_recording(accelerator, steps=50)

A tracker of accelerate is not sufficient, because trackers run only on the main process.
"""

import functools
from typing import Any

from harness.training.script.recording import Recording


def accelerate_recording(accelerator: Any, name: str = "", **window: Any) -> Recording:
    """Record one window of a training that uses an ``Accelerator``.

    The recording begins with this call and ends with ``accelerator.end_training``. ``window`` takes
    the arguments of ``measure_steps``. On rank 0, ``run`` of the returned recording is the folder
    of the record.
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
