"""An input that makes all batches before the window and keeps them in the host's memory."""

from harness import span

INPUT = dict(instead=("resident",))  # the input to try if this one stalls


def feed(source, knobs):  # returns a function from a step's number to its batch
    made = [source.content(source.ids(step)) for step in range(source.steps)]

    def take(step):
        with span("move"):
            return source.batch(step, source.ids(step), *made[step])

    return take
