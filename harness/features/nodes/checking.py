"""The check of bits: one launch in which several ranks compute the same micro-batches."""

from harness.cases import CaseSpec, Window
from harness.cases.recipes import gated
from harness.launch.wire.messages import InjectedBitFlip
from harness.measure.measurer import Measurer, moment
from harness.measure.order import Order
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

#: Steps in which a rank that errs once in a hundred times is found.
STEPS = 200


def check_bits(
    session: Session, case: CaseSpec, steps: int = STEPS, flip: InjectedBitFlip | None = None
) -> LaunchRecord:
    """The launch, which is wrong where bits differ; ``flip`` is planted."""
    plan = gated(case)
    Measurer(session).measure([plan])  # a training that is wrong has no bits worth comparing
    order = Order(
        plan=plan,
        arm=plan.arms[0],
        purpose=Purpose.BITS,
        window=Window(steps=steps, cut=0),
        flip=flip,
    )
    (launch,) = session.launch([order], moment(session, order, {}, []))
    return launch
