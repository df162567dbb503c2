"""What an agent answers when it is asked how its machine is."""

from harness.base.documents import Json, to_doc
from harness.host import admission, doctor, facts


def examination() -> dict[str, Json]:
    """Its facts, the findings of every check, and those that decide whether verdicts can stand."""
    decisive = admission.examine(on_gpus=True)
    findings = (*doctor.examine(), *decisive)
    return {
        "facts": facts.facts(),
        "findings": to_doc(findings),
        "admission": to_doc(decisive),
    }
