"""Find secrets, which must not be recorded, by the last word of a name or the form of a value.

A script's secret must be given by the name of a variable: the record keeps
``--api-key {env:API_KEY}``, and each rank inserts the value from its environment. A password
without a name (``-p hunter2``) cannot be distinguished from any other word.
"""

import functools
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from harness.base.errors import SpecError

#: The text that replaces a secret.
HIDDEN = "***"
#: Number of characters of the shortest value that is replaced wherever it appears.
SHORTEST = 6
#: Last words of names whose value is always a secret.
_SURE = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "psk", "pin", "secret", "credential",
    "cred", "apikey", "jwt", "pat", "sas", "sig", "signature", "bearer", "cookie", "authorization",
})  # fmt: skip
#: Last words that may also be normal options of a training (``--image-key``, ``--pad-token``). The
#: value is a secret if it looks like one, or if the previous word of the name is in ``_QUALIFIED``.
_PERHAPS = frozenset({"token", "key", "auth", "pass", "login", "license", "user"})
_QUALIFIED = frozenset({
    "api", "access", "private", "account", "client", "auth", "refresh", "bearer", "ssh",
    "encryption", "secret", "identity", "session", "deploy", "bot", "admin", "root", "db",
    "database", "sql", "mysql", "postgres", "pg", "redis", "mongo", "smtp", "mail", "ftp", "proxy",
    "git", "github", "gitlab", "npm", "docker", "registry", "webhook", "slack", "wandb", "hf",
    "huggingface", "openai", "anthropic", "aws", "azure", "gcp", "master", "signing",
})  # fmt: skip
#: Last words of a name that only say where or for what its secret is used.
_PURPOSES = frozenset({
    "prod", "production", "dev", "staging", "test", "ci", "read", "write", "ro", "rw", "primary",
    "secondary", "old", "new",
})  # fmt: skip
#: A word in which the last part is not set apart: ``PGPASSWORD``, ``identitytoken``.
_JOINED = re.compile(r"([a-z]+)(password|passwd|passphrase|secret|apikey|token)")
#: What a terminal does not show: colours, links, erased characters, and characters without width.
_UNSEEN = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\n]\x08|[\u200b-\u200f\u2060\ufeff]"
)
#: Values that are never secrets, whatever their name.
_PLAIN = re.compile(r"(true|false|yes|no|none|null|on|off|auto|[\d.]{0,3})", re.I)
#: Pattern of a placeholder for a variable, whose value each rank inserts.
_NAMED = re.compile(r"\{env:(\w+)\}")
#: Forms of secrets: private keys, HTTP headers, passwords in URLs, files and commands. The matched
#: group is replaced.
_LOOKS = (
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"),
    re.compile(r"\b(?:bearer|basic)\s+(\S{8,})", re.I),
    re.compile(r"\b(?:authorization|cookie)[\"']?\s*:\s*[\"']?([^\s\"'][^\n]*)", re.I),
    re.compile(r"://[^\s/:@]*:(?!\d+(?:/|$))([^\s@]\S*)@"),
    re.compile(r"\blogin\s+\S+\s+(?:account\s+\S+\s+)?password\s+(\S+)"),  # .netrc
    re.compile(r"\bclient-key-data:\s*(\S+)"),  # kubeconfig
    re.compile(r"\bcurl\b[^\n|;]*?\s(?:-u|--user)[ =]?([^\s:-]\S*:\S+)"),
    re.compile(r"\bsshpass\s+-p\s*(\S+)"),
    re.compile(r"\b(\d{8,10}:AA[\w-]{33})"),  # Telegram
    re.compile(r"\b([MNO][\w-]{23,}\.[\w-]{6}\.[\w-]{27,})"),  # Discord
    re.compile(r"\b(\w{14}\.atlasv1\.[\w-]{60,})"),  # Terraform Cloud
)
#: Options of programs that take a secret and whose names do not say so.
_OPTIONS = {("curl", "-u"), ("curl", "-U"), ("sshpass", "-p")}
#: Tokens of well-known services: a prefix, which a long run of letters and digits must follow.
_SERVICES = re.compile(
    r"(?<![\w-])((?:gh[opsur]_|github_pat_|hf_|sk[-_]|xox[abdeprs]-|xapp-|A[KS]IA|AIza|pypi-|npm_"
    r"|ya29\.|eyJ|nvapi-|do[por]_v1_|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-|[rs]k_(?:live|test)_|SG\."
    r"|lin_api_|glsa_|dckr_pat_|hv[sb]\.|pplx-|r8_|figd_|PMAK-|tskey-|ATATT|xai-|gsk_|rpa_"
    r"|gl(?:pat|rt|ptt|dt|cbt)-|GOCSPX-|1//0|whsec_|wandb_v1_|dapi|ntn_|dp\.pt\.|tgp_v1_|lsv2_"
    r"|glc_|sntrys_|AGE-SECRET-KEY-|HRKU-|AKCp|nfp_|vercel_|sbp_|pscale_(?:tkn|pw)_)[\w./+-]*)"
)
_USER = re.compile(r"://([^\s/@:]+)@")
_HOOK = re.compile(r"://\S*hook\S*?/(\w{8,}\S*)")
#: Pattern of ``name=value`` or ``name: value`` inside a word, as in URLs, JSON, connection strings
#: and headers.
_PAIR = re.compile(
    r"""(?<![A-Za-z0-9_])(?=(_*[A-Za-z][\w.@\[\]-]*)["']?\s*[=:]\s*["']?(?!//)"""
    r"""((?<=")[^"\n]+|(?<=')[^'\n]+|(?:[^\s,;&"'{}]|&(?![\w.-]+=))+))"""
)


class Secret(NamedTuple):
    """The position of a secret in a command, and its name.

    ``word`` is the number of the word that contains it. ``start`` and ``end`` are positions in this
    word.
    """

    word: int
    start: int
    end: int
    name: str


def is_secret(variable: str, value: str) -> bool:
    """Return whether an environment variable is a secret, by its name or by its value."""
    last = next(reversed(_parts(variable)), "")
    named = last in _SURE | _PERHAPS
    if named and value.lower() not in ("0", "1", "true", "false"):
        return True
    return bool(list(_secrets_of(_words_of(value))))


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not secrets."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def masked(text: str) -> str:
    """Return a text in which everything that looks like a secret is replaced.

    The values of this process's secret variables are replaced whatever they look like, also across
    the ends of lines. A text with secrets loses what a terminal does not show, such as colours,
    which could stand between a name and its secret.
    """
    seen = _UNSEEN.sub("", text)
    hidden = seen
    for pattern in _values(tuple(os.environ.items())):
        hidden = pattern.sub(HIDDEN, hidden)
    (hidden,) = masked_words([hidden])
    return text if hidden == seen else hidden


#: Length of the longest secrets, such as private keys of 8192 bits in PEM, in characters.
LONGEST = 8_000


def masked_ends(start: str, end: str) -> tuple[str, str]:
    """Return both ends of a text without its middle, with secrets replaced.

    A secret that is cut in two is not recognised. Each end therefore loses ``LONGEST`` characters
    at its cut.
    """
    return masked(start)[:-LONGEST], masked(end)[LONGEST:]


@functools.lru_cache(1)
def _values(environment: tuple[tuple[str, str], ...]) -> list[re.Pattern[str]]:
    """Return patterns of the values of the secret variables in an environment, the longest first.

    Lines may end within a value. A short value or a path could be part of any text, and is left
    out.
    """
    values = {
        value
        for name, value in environment
        if len(value) >= SHORTEST and not value.startswith(("/", "~")) and _is_named(name, value)
    }
    ordered = sorted(values, key=len, reverse=True)
    return [re.compile(r"[\r\n]*".join(map(re.escape, value))) for value in ordered]


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command with its secrets replaced."""
    return tuple(_replaced(words, lambda secret: HIDDEN))


def refuse(words: Sequence[str], run: str) -> None:
    """Raise SpecError if a script's command contains a secret.

    The command is part of the case's name, so the secret would be recorded. ``run`` is the command
    line in front of the script's command. The error suggests the whole command line with the secret
    replaced.
    """
    secrets = list(_secrets_of(words))
    if not secrets:
        return
    better = shlex.join(_replaced(words, lambda secret: f"{{env:{_variable(secret)}}}"))
    variables = list(dict.fromkeys(map(_variable, secrets)))
    raise SpecError(
        f"{secrets[0].name or 'a word of the command'} is a secret, and the record would keep it",
        expected="the name of an environment variable, whose value every rank inserts",
        fix=f"read -rs {' '.join(variables)}; export {' '.join(variables)}; {run} {better}",
    )


def filled(words: Sequence[str]) -> list[str]:
    """Return a command in which names such as ``{env:API_KEY}`` are replaced by their values.

    Raise SpecError if the environment lacks such a variable.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise SpecError(
                f"{match[0]}: there is no such variable in the environment of the ranks",
                expected=f"{match[1]} is set in the environment in which the ranks are started",
                fix=f"export {match[1]}=...",
            )
        return os.environ[match[1]]

    return [_NAMED.sub(value, word) for word in words]


def _variable(secret: Secret) -> str:
    """Return a name for an environment variable that could hold a secret."""
    return re.sub(r"\W+", "_", secret.name).strip("_").upper() or "SECRET"


def _replaced(words: Sequence[str], by: Callable[[Secret], str]) -> list[str]:
    """Return the words with every secret replaced.

    The last secret is replaced first, so that the positions of the others stay valid.
    """
    replaced = list(words)
    for secret in sorted(_secrets_of(words), reverse=True):
        word = replaced[secret.word]
        replaced[secret.word] = word[: secret.start] + by(secret) + word[secret.end :]
    return replaced


def _words_of(value: str) -> list[str]:
    """Split a variable's value into words if it looks like a command with options."""
    try:
        return shlex.split(value) if re.search(r"(^|\s)--[A-Za-z]", value) else [value]
    except ValueError:
        return [value]


def _secrets_of(words: Sequence[str]) -> Iterator[Secret]:
    """Yield every secret in a command.

    If secrets overlap, only the first one is yielded, and of those that begin alike the longest.
    """
    everything = itertools.chain(_of_options(words), _of_looks(words))
    ordered = sorted(everything, key=lambda secret: (secret.word, secret.start, -secret.end))
    word = -1
    end = 0
    for secret in ordered:
        if secret.word != word or secret.start >= end:
            word, end = secret.word, secret.end
            if not _NAMED.fullmatch(words[secret.word][secret.start : secret.end]):
                yield secret


def _of_options(words: Sequence[str]) -> Iterator[Secret]:
    """Yield secrets after option names: ``--name value``.

    Further values (``--name value value``) count only if every value of this name is a secret.
    """
    for index, word in enumerate(words):
        name = word.lstrip("-")
        if (PurePath(words[0]).name, word) in _OPTIONS and len(words) > index + 1:
            yield Secret(index + 1, 0, len(words[index + 1]), PurePath(words[0]).name)
        if word == name or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            continue
        for offset, value in enumerate(words[index + 1 :]):
            if value.startswith("-") and (offset or len(words) > index + 2):
                break
            if offset and not _is_named(name, "any value at all"):
                break
            if _is_named(name, value):
                yield Secret(index + 1 + offset, 0, len(value), name)


def _of_looks(words: Sequence[str]) -> Iterator[Secret]:
    """Yield secrets by their form: pairs inside a word, URLs, tokens and keys."""
    for index, word in enumerate(words):
        for match in itertools.chain(*(pattern.finditer(word) for pattern in _LOOKS)):
            yield Secret(index, *match.span(1), "")
        for match in _SERVICES.finditer(word):
            if any(_is_token(run) for run in re.split(r"[-_./+]", match[1])):
                yield Secret(index, *match.span(1), "")
        for pattern in (_USER, _HOOK):
            for match in pattern.finditer(word):
                if _looks_random(match[1]) or _is_hex(match[1]):
                    yield Secret(index, *match.span(1), "")
        for match in _PAIR.finditer(word):
            if _is_named(match[1], match[2]):
                yield Secret(index, *match.span(2), match[1])


def _is_named(name: str, value: str) -> bool:
    """Return whether a value is a secret, judging by the last words of its name and the value."""
    parts = _parts(name)
    if not parts or _PLAIN.fullmatch(value) or _NAMED.fullmatch(value):
        return False
    last = parts[-1]
    qualified = bool({*parts[-2:-1]} & _QUALIFIED)
    if last in _SURE or (last in ("key", "token", "pass", "auth") and qualified):
        return True
    if last not in _PERHAPS:
        return False
    pair = last in ("auth", "login", "user") and re.fullmatch(r"[^\s:/]+:[^\s:/]{4,}", value)
    return bool(pair) or _looks_random(value) or _is_hex(value)


def _parts(name: str) -> list[str]:
    """Return the words of a name in the singular: ``hfToken`` gives hf, token.

    Words and digits at the end that say nothing about the value are left out: ``API_KEY_PROD``,
    ``password2``.
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [part for part in re.split(r"[^a-z0-9]+", apart.lower()) if part]
    while len(parts) > 1 and (parts[-1] in _PURPOSES or parts[-1].isdigit()):
        parts.pop()
    parts[-1:] = [part.rstrip("0123456789") or part for part in parts[-1:]]
    parts = [p[:-1] if p.endswith("s") and p[:-1] in _SURE | _PERHAPS else p for p in parts]
    joined = _JOINED.fullmatch(parts[-1]) if parts else None
    return [*parts[:-1], *joined.groups()] if joined else parts


def _looks_random(value: str) -> bool:
    """Return whether a value looks random.

    A value looks random if lower case, upper case and digits alternate often in it.
    """
    for run in re.findall(r"[A-Za-z0-9]{8,}", value):
        kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run]
        changes = sum(a != b for a, b in itertools.pairwise(kinds))
        if changes >= 3 and changes >= len(run) / 8 and not re.fullmatch(r"0x[0-9a-f]+", run):
            return True
    return False


def _is_token(run: str) -> bool:
    """Return whether the letters and digits after a service's prefix look like a token."""
    return len(run) >= 16 and any(c.isdigit() or c.isupper() for c in run)


def _is_hex(value: str) -> bool:
    """Return whether a value is a hexadecimal digest or key of a usual length."""
    return re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}", value) is not None
