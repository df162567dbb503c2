"""Signatures: who vouches for a run. Ed25519 keys as ssh-keygen makes them.

The last link of the chain is signed, and with it everything before: rules, nonce, every launch.
"""

import base64
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError, SpecError
from harness.base.files import write
from harness.record import chain

FILE = "chain.sig"
_DOMAIN = b"scaleproof run\n"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """``head`` is the hash that was signed, ``key`` the public key in OpenSSH's form."""

    head: str
    key: str
    signature: str


def sign(folder: Path, key: Path, passphrase: str | None = None) -> Signature:
    """Sign the run in a folder; RecordError for one that did not end, SpecError for a bad key."""
    links = chain.read(folder)
    if not links or links[-1].kind is not chain.Kind.ENDED:
        raise RecordError(
            "only a complete, chained run can be signed",
            where=str(folder),
            fix=f"scaleproof run --resume {folder}",
        )
    private = _private(key, passphrase)
    head = links[-1].hash
    form = _library("serialization")
    encoded = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    public = encoded.decode()
    signed = base64.b64encode(private.sign(_DOMAIN + head.encode())).decode()
    signature = Signature(head=head, key=public, signature=signed)
    write({folder / FILE: json.dumps(to_doc(signature), indent=1) + "\n"})
    return signature


def signed(folder: Path) -> Signature | None:
    """The signature beside a run; None if there is none, RecordError if it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return from_doc(Signature, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise RecordError(f"not a signature: {error}", where=str(path), fix=f"rm {path}") from None


def holds(signature: Signature, head: str, key: Path | None = None) -> str:
    """Why a signature does not vouch for this head, under this public key; empty if it does."""
    if signature.head != head:
        return f"the signature is of another run: {signature.head[:16]}, not {head[:16]}"
    if key is not None and _bare(_public(key)) != _bare(signature.key):
        return f"the run was signed by another key: {signature.key}"
    library = _library("serialization")
    refused = importlib.import_module("cryptography.exceptions").InvalidSignature
    try:
        public = library.load_ssh_public_key(signature.key.encode())
        public.verify(base64.b64decode(signature.signature), _DOMAIN + head.encode())
    except (refused, ValueError, TypeError, AttributeError):  # or a key of another kind
        return "the signature is not by the key that it names"
    return ""


def _public(path: Path) -> str:
    """The one public key of a file; SpecError where it holds something else, or several."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SpecError(f"--key {path}: {error}", fix=f"ls {path.parent}/*.pub") from None
    if len(lines) != 1 or not lines[0].startswith("ssh-"):
        raise SpecError(
            f"--key {path}: not one public key, but {len(lines)} lines",
            expected="the .pub file of the one key that must have signed",
            fix=f"ls {path.parent}/*.pub",
        )
    return lines[0]


def _bare(text: str) -> tuple[str, ...]:
    """Kind and key, without the comment."""
    return tuple(text.split()[:2])


def _private(path: Path, passphrase: str | None) -> Any:
    library, ed25519 = _library("serialization"), _library("asymmetric.ed25519")
    try:
        key = library.load_ssh_private_key(
            path.read_bytes(), passphrase.encode() if passphrase else None
        )
    except (OSError, ValueError, TypeError) as error:
        raise SpecError(
            f"--key {path}: {error}",
            expected="an ed25519 key of OpenSSH",
            fix="ssh-keygen -t ed25519 -f site_key",
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SpecError(
            f"--key {path}: not an ed25519 key", fix="ssh-keygen -t ed25519 -f site_key"
        )
    return key


def _library(name: str) -> Any:
    """A module of the package that signs, which only those need who sign or check."""
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{name}")
    except ImportError:
        raise SpecError(
            "signatures need the package cryptography", fix="pip install 'scaleproof[sign]'"
        ) from None
