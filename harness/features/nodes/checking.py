"""The check of bits: one launch in which several ranks compute the same micro-batches."""

from harness.cases import CaseSpec, Window
from harness.cases.recipes import gated
from harness.launch.wire.messages import InjectedBitFlip
from harness.measure.measurer import Measurer, moment
from harness.measure.order import Order
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

#: Default number of steps; a rank that errs in one step of a hundred is found in so many.
STEPS = 200


def check_bits(
    session: Session, case: CaseSpec, steps: int = STEPS, flip: InjectedBitFlip | None = None
) -> LaunchRecord:
    """Return the launch that compares bits; its record names the ranks whose bits differ.

    ``flip`` is a bit flip that is injected to test the check.
    """
    plan = gated(case)
    Measurer(session).measure([plan])  # the bits of an incorrect training are not worth comparing
    order = Order(
        plan=plan,
        arm=plan.arms[0],
        purpose=Purpose.BITS,
        window=Window(steps=steps, cut=0),
        flip=flip,
    )
    (launch,) = session.launch([order], moment(session, order, {}, []))
    return launch
