"""All batches are made before the window and stay in the host's memory."""

from harness import span

INPUT = dict(instead=("resident",))  # what to try against its stalls


def feed(source, knobs):  # the batch of a step: a function of its number
    made = [source.content(source.ids(step)) for step in range(source.steps)]

    def take(step):
        with span("move"):
            return source.batch(step, source.ids(step), *made[step])

    return take
