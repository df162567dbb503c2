"""Compare the results of ranks bit for bit, in a launch in which all compute the same batches."""

from harness.cases import CaseSpec, Window
from harness.cases.recipes import gated
from harness.launch.wire.messages import InjectedBitFlip
from harness.measure.measurer import Measurer, moment
from harness.measure.order import Order
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

#: Default number of steps. They suffice to find a rank that errs in one of a hundred steps.
STEPS = 200


def check_bits(
    session: Session, case: CaseSpec, steps: int = STEPS, flip: InjectedBitFlip | None = None
) -> LaunchRecord:
    """Launch a training that compares bits. Its record names the ranks whose bits differ.

    ``flip`` is a bit flip that is injected to test the check.
    """
    plan = gated(case)
    Measurer(session).measure([plan])  # bits are compared only if the training is correct
    order = Order(
        plan=plan,
        arm=plan.arms[0],
        purpose=Purpose.BITS,
        window=Window(steps=steps, cut=0),
        flip=flip,
    )
    (launch,) = session.launch([order], moment(session, order, {}, []))
    return launch
