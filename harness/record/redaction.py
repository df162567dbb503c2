"""Removal of names from a record: hosts, users, addresses and paths are replaced.

record, chain -> find names -> replace them -> recompute hashes of cases and plans
              -> link the chain anew -> a record that verifies, with another head

Numbers, samples and verdicts do not change. The new chain shows that nothing was omitted from the
redacted record. Only the owner of the original chain can show that the redacted record was really
measured.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import RecordError
from harness.cases.metrics import METRICS
from harness.host import secrets
from harness.record.chain import Kind, Link
from harness.record.outcome import Reason, Status
from harness.record.record import RunRecord
from harness.record.store import written

#: Absolute paths and paths below a home folder. The group is the last part, which is kept.
_PATH = re.compile(r"""(?:^|(?<=[\s='":,(\[]))~?/(?:[^\s/'":,]+/)*([^\s/'":,]*)""")
_HOME = re.compile(r"/(?:home|Users)/([\w.-]+)")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
#: Candidates for IPv6 addresses, which ``ipaddress`` then checks.
_COLONS = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?(?![\w:])"
)
#: A replaced path that ends at a blank, before text that may be the rest of the path.
_CUT = re.compile(r"PATH/[^\s'\":,]* (?=[^\s'\":,=-][^\s'\":,=]*/)")
#: Words that verdicts consist of. If they were replaced, the record could not be judged again.
_WORDS = (*METRICS, *Status, *Reason)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")


def redact(
    run: RunRecord, links: tuple[Link, ...], more: tuple[str, ...] = ()
) -> tuple[RunRecord, tuple[Link, ...]]:
    """Return the run and its chain without names. ``more`` are further texts that must be removed.

    Raises RecordError if a name is also a word of the record format, or if the end of a path is
    ambiguous.
    """
    run = replace(run, environment=secrets.kept(run.environment))
    doc = to_doc(run)
    names = _names(run, doc, more)

    for word in _WORDS:
        if _replaced(word, names) != word:
            raise RecordError(
                f"a name to remove is part of {word!r}, a word of the record itself",
                where=run.run,
                expected="names of hosts, users and places",
                fix="scaleproof accept pack RUN",
            )

    for unsure in _unsure(_mapped([doc, [x.body for x in links]], lambda t: _replaced(t, names))):
        raise RecordError(
            f"the end of a path is ambiguous: {unsure[:120]!r}",
            where=run.run,
            expected="paths without blanks, or their parts given by --redact-also",
            fix="scaleproof accept pack RUN --redact --redact-also 'A PART OF IT'",
        )

    def cleaned(value: Json) -> Json:
        return _mapped(value, lambda text: _replaced(text, names))

    try:
        clean = from_doc(RunRecord, cleaned(doc), "record")
    except ValueError as error:
        raise RecordError(
            f"a name to remove is a word of the record itself: {error}",
            where=run.run,
            expected="hosts and users whose names are not words of a record",
            fix="scaleproof accept pack RUN",
        ) from None
    anew = _hashes(run, clean)

    def renamed(value: Json) -> Json:
        return _mapped(cleaned(value), lambda text: anew.get(text, text))

    new: list[Link] = []
    for link in links:
        before = new[-1].hash if new else ""
        body = link.body
        if link.kind is Kind.SEALED:
            body = {**body, "environment": secrets.kept(body["environment"])}
        new.append(replace(link, before=before, body=renamed(body)))
    head = new[-1].hash if new else ""
    clean = from_doc(RunRecord, {**_mapped(to_doc(clean), lambda t: anew.get(t, t)), "head": head})
    return clean, tuple(new)


def files(
    run: RunRecord, links: tuple[Link, ...], samples: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the files of a redacted run: its record, its chain, and the unchanged samples."""
    contents = {"record.json": written(run).encode()}
    if links:
        contents["chain.jsonl"] = "".join(link.line + "\n" for link in links).encode()
    return contents | {
        name: body for name, body in samples.items() if name.endswith((".npz", ".zip"))
    }


def _names(run: RunRecord, doc: Json, more: tuple[str, ...]) -> dict[str, str]:
    """Return the replacement of each name.

    Longer names come first, because a name may contain another.
    """
    hosts = dict.fromkeys(
        digest
        for digest in (
            run.machine.host,
            *(node.host for node in run.nodes),
            *(rank.host for launch in run.launches for rank in launch.ranks),
        )
        if digest
    )
    replaced = {host: f"host-{i}" for i, host in enumerate(hosts)}
    replaced |= {
        digest.partition(".")[0]: name for digest, name in list(replaced.items()) if "." in digest
    }
    for path in map(PurePosixPath, _blank_paths(doc["settings"])):
        replaced[str(path)] = (
            f"PATH/{path.name}" if path.suffix and " " not in path.name else "PATH"
        )
    users = dict.fromkeys(_HOME.findall(json.dumps(doc)))
    replaced |= {user: f"user-{i}" for i, user in enumerate(users) if user not in replaced}
    replaced |= {text: "redacted" for text in more if text}
    return dict(sorted(replaced.items(), key=lambda pair: -len(pair[0])))


def _blank_paths(value: Json) -> Iterator[str]:
    """Yield every string that is a path with a blank, and its parent folders with a blank.

    Inside other strings, a pattern would end such a path at the blank.
    """
    if isinstance(value, str):
        if value.startswith(("/", "~/")) and " " in value and "\n" not in value:
            yield value
            yield from (f for f in map(str, PurePosixPath(value).parents) if " " in f)
        return
    children = value.values() if isinstance(value, Mapping) else value
    if isinstance(children, Iterable):
        for child in children:
            yield from _blank_paths(child)


def _replaced(text: str, names: Mapping[str, str]) -> str:
    """Return the text with addresses, names and paths replaced."""
    text = _MAIL.sub("address", _ADDRESS.sub("address", secrets.masked(text)))
    text = _COLONS.sub(_address, text)
    for name, other in names.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", other, text)
    return _PATH.sub(r"PATH/\1", text)


def _address(match: re.Match[str]) -> str:
    """Return ``address`` for a match that is an IPv6 address, otherwise the match itself."""
    try:
        ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    return "address"


def _unsure(value: Json) -> Iterator[str]:
    """Yield strings in which a path may continue after a blank."""
    if isinstance(value, str):
        if _CUT.search(value):
            yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _unsure(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _unsure(child)


def _mapped(value: Json, change: Callable[[str], str]) -> Json:
    """Return the document with ``change`` applied to every string.

    Keys are changed too, because some of them are hashes or names.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(part, change) for key, part in value.items()}
    return [_mapped(v, change) for v in value] if isinstance(value, list | tuple) else value


def _hashes(old: RunRecord, new: RunRecord) -> dict[str, str]:
    """Map the old hash of each case and plan to its new hash, if the hash has changed."""
    replaced = {}
    for before, after in zip(old.plans, new.plans, strict=True):
        replaced[before.hash] = after.hash
        for a, b in zip(before.arms, after.arms, strict=True):
            replaced[a.case.hash] = b.case.hash
    return {a: b for a, b in replaced.items() if a != b}
