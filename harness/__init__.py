"""scaleproof: prove or disprove that distributed PyTorch training scales, and say why.

The names that suites and users' files need; none of them imports torch.
"""

from harness.recipes import Recipe, control, ladder, like, plain, shapes, versus
from harness.recovery import Course, Fault
from harness.site import Site
from harness.spec import CaseSpec, Plan, Protocol
from harness.suite import recovering, scaling

__all__ = [
    "CaseSpec",
    "Course",
    "Fault",
    "Plan",
    "Protocol",
    "Recipe",
    "Site",
    "control",
    "ladder",
    "like",
    "plain",
    "recovering",
    "scaling",
    "shapes",
    "versus",
]
