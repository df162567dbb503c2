"""What an agent answers when it is asked how its machine is."""

from harness.base.documents import Json, to_doc
from harness.host import admission, doctor, facts


def examination() -> dict[str, Json]:
    """Its facts, and the findings of every check."""
    found = (*doctor.examine(), *admission.examine(on_gpus=True))
    return {"facts": facts.facts(), "findings": to_doc(found)}
