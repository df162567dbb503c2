"""Record a training of accelerate with one line.

accelerator = Accelerator()
harness.accelerate_recording(accelerator, steps=50)

A tracker of accelerate would not do, because trackers run on the main process only.
"""

import functools
from typing import Any

from harness.training.script.recording import Recording


def accelerate_recording(accelerator: Any, name: str = "", **window: Any) -> Recording:
    """Record one window of an ``Accelerator``'s training, from here to its ``end_training``.

    ``window`` has the arguments of ``measure_steps``. ``run`` of the returned recording is the
    folder of the record, on rank 0.
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
