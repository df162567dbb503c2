"""A cache of case descriptions that the same versions of this package and of torch made."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from importlib import metadata

from harness.base import files
from harness.base.documents import Json, from_doc, to_doc
from harness.cases import CaseSpec, Catalogue
from harness.record import Described


class DescribeCache:
    """Descriptions by the hash of their case.

    Cases that use a user's files, or packages that may be installed or removed, are never cached.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._known = catalogue
        version = f"{files.digest_of_package()}-{metadata.version('torch')}"
        folder = files.cache_folder()
        self._path = folder / f"described-{version}.json" if folder is not None else None
        self._answers: dict[str, Json] = {}
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                self._answers = json.loads(self._path.read_text(encoding="utf-8"))

    def of(self, cases: Sequence[CaseSpec]) -> dict[str, Described]:
        """Return the cached descriptions of these cases, by the hash of the case."""
        return {
            case.hash: from_doc(Described, self._answers[case.hash])
            for case in cases
            if case.hash in self._answers
        }

    def keep(self, cases: Sequence[CaseSpec], described: Mapping[str, Described]) -> None:
        """Cache new descriptions; do nothing if the cache folder cannot be written.

        Errors are not cached, because a busy machine may have caused them.
        """
        unknown = [case for case in cases if case.hash not in self._answers and self._lasts(case)]
        fresh = [case for case in unknown if not described[case.hash].error]
        self._answers |= {case.hash: to_doc(described[case.hash]) for case in fresh}
        if not fresh or self._path is None:
            return
        with contextlib.suppress(OSError):
            files.write({self._path: json.dumps(self._answers)})
            for old in self._path.parent.glob("described-*.json"):
                if old != self._path:
                    old.unlink(missing_ok=True)

    def _lasts(self, case: CaseSpec) -> bool:
        """Return whether the description of a case can be cached."""
        shipped = all(not file.endswith(".py") for file in self._known.files(case).values())
        packages = self._known.get("strategies", case.strategy).supports.packages
        return shipped and not case.script and not packages
