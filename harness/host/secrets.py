"""What may stand in no record: told by the names of things, and by how tokens look.

A secret of a script is named, not written: ``--api-key '$API_KEY'`` is what the record keeps, and
each rank puts in what its environment says.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.base.errors import SpecError

#: What stands in a secret's place.
HIDDEN = "***"
#: Words of a name that say that its value is a secret.
_ALWAYS = re.compile(
    r"passw(or)?d|passphrase|secret|credential|(api|access|auth|private|account|client|ssh)[-_]?key"
    r"|(auth|access|bearer|refresh|api)[-_]?token",
    re.I,
)
#: Words of a variable that do so where they stand alone: NCCL_AUTH, but not NCCL_AUTHORITY.
_PARTS = frozenset({
    "token", "tokens", "secret", "secrets", "pass", "pwd", "passwd", "password", "cred", "creds",
    "auth", "key", "keys", "apikey", "pin", "license", "licence", "cookie", "bearer", "jwt", "sas",
    "pat", "private", "signature", "login",
})  # fmt: skip
#: Of an option these may also be a training's own (``--pad-token``, ``--key dim``): there the value
#: has to look like a secret, too.
_PERHAPS = frozenset({"token", "key", "auth", "pin", "pass", "pwd", "cred", "creds", "license"})
_URL = re.compile(r"(\b[a-z][\w+.-]*://)([^\s/@:]*):([^\s/@]+)@", re.I)
#: Tokens of GitHub, Hugging Face, OpenAI and alike, Slack, AWS, Google, GitLab; a JSON Web Token.
_TOKEN = re.compile(
    r"\b(gh[opsur]_\w{20,}|github_pat_\w{20,}|hf_\w{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|glpat-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
_NAMED = re.compile(r"\$(?:\{(\w+)\}|(\w+))$")


def is_secret(variable: str, value: str) -> bool:
    """Whether a variable of the environment may not be kept."""
    return _names_one(variable, _PARTS) or holds_secret(value)


def holds_secret(text: str) -> bool:
    """Whether a password in a URL, or what looks like a token of a well-known service, is in it."""
    return bool(_URL.search(text) or _TOKEN.search(text))


def masked(text: str) -> str:
    """Without passwords in URLs and tokens."""
    return _TOKEN.sub(HIDDEN, _URL.sub(rf"\1\2:{HIDDEN}@", text))


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command with its secrets hidden."""
    hidden = {index: start for index, _, start in _secrets_of(words)}
    return tuple(
        f"{word[: hidden[i]]}{HIDDEN}" if i in hidden else masked(word)
        for i, word in enumerate(words)
    )


def refuse(words: Sequence[str], run: str) -> None:
    """SpecError if a script's command holds a secret: it would be part of the case's name.

    ``run`` is the command that runs it, up to the script's own words.
    """
    for index, name, start in _secrets_of(words):
        variable = re.sub(r"\W+", "_", name).strip("_").upper() or "SECRET"
        word = f"{words[index][:start]}${variable}"
        better = [*words[:index], f"'{word}'", *words[index + 1 :]]
        raise SpecError(
            f"{name or 'a word of the command'} is a secret, and the record keeps the command",
            expected=f"its name: every rank puts in what its variable {variable} says",
            fix=f"read -rs {variable}; export {variable}; {run} {' '.join(better)}",
        )


def filled(words: Sequence[str]) -> list[str]:
    """A command with what its secret options name: ``--api-key '$API_KEY'``.

    SpecError where the environment lacks a variable.
    """
    out = list(words)
    for name, index, start in _options(words):
        named = _NAMED.fullmatch(words[index][start:])
        if named is None or not _names_one(name, _PERHAPS):
            continue
        variable = named[1] or named[2]
        if variable not in os.environ:
            raise SpecError(
                f"{name}: there is no variable {variable} where its ranks run",
                expected=f"{variable} in the environment that starts them",
                fix=f"export {variable}=...",
            )
        out[index] = words[index][:start] + os.environ[variable]
    return out


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that are secret."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def _names_one(name: str, parts: frozenset[str]) -> bool:
    return bool(_ALWAYS.search(name)) or not parts.isdisjoint(re.split(r"[-_.]", name.lower()))


def _secrets_of(words: Sequence[str]) -> Iterator[tuple[int, str, int]]:
    """(index of the word, what it is called, where the secret begins in it) of every secret."""
    seen = set()
    for name, index, start in _options(words):
        value = words[index][start:]
        if not value or _NAMED.fullmatch(value):
            continue
        surely = bool(_ALWAYS.search(name))
        if surely or (_names_one(name, _PERHAPS) and _looks_random(value)):
            seen.add(index)
            yield index, name, start
    for index, word in enumerate(words):
        if index not in seen and holds_secret(word):
            name, equals, _ = word.partition("=")
            yield (index, name, len(name) + 1) if equals and name[:1] == "-" else (index, "", 0)


def _options(words: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(name, index of the word with its value, where in it the value begins) of every option.

    Options are ``--name=value``, ``--name value``, ``name=value`` and ``+name=value``.
    """
    for index, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if equals and re.fullmatch(r"[-+~]*[\w.-]+", name):
            yield name.lstrip("-+~"), index, len(name) + 1
        elif re.fullmatch(r"--?[A-Za-z][\w.-]*", word) and index + 1 < len(words):
            if not words[index + 1].startswith("--"):
                yield word.lstrip("-"), index + 1, 0


def _looks_random(value: str) -> bool:
    """Long, and of letters and digits mixed: no number, no word, no path, no file."""
    return (
        re.fullmatch(r"[\w+=~-]{8,}", value) is not None
        and any(c.isdigit() for c in value)
        and any(c.isalpha() for c in value)
        and not re.fullmatch(r"[\deE+-]+", value)
    )
