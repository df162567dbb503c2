"""Signatures of runs with Ed25519 keys in the format of ssh-keygen.

The hash of the chain's last link is signed. Through the chain, this hash depends on everything
earlier: the thresholds, the nonce and every launch.
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

#: The file with the signature in the folder of a run.
FILE = "chain.sig"
#: Text that is put before the signed hash, so that the signature is valid for no other purpose.
_DOMAIN = b"scaleproof run\n"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A signature of a run: ``head`` is the signed hash, ``key`` the public key in OpenSSH
    format.
    """

    head: str
    key: str
    signature: str


def sign(folder: Path, key: Path, passphrase: str | None = None) -> Signature:
    """Sign the run in a folder.

    Raises RecordError if the run is not complete, and SpecError if the key cannot be used.
    """
    links = chain.read(folder)
    if not links or links[-1].kind is not chain.Kind.ENDED:
        raise RecordError(
            "only a complete run with a chain can be signed",
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
    """Return the signature of a run, or None if there is none. Raise RecordError if it is
    unreadable.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return from_doc(Signature, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise RecordError(f"not a signature: {error}", where=str(path), fix=f"rm {path}") from None


def holds(signature: Signature, head: str, key: Path | None = None) -> str:
    """Return the reason why a signature is not valid, or "" if it is valid.

    It is valid if it signs this ``head`` and, if ``key`` is given, was made with that key.
    """
    if signature.head != head:
        return f"the signature belongs to another run: {signature.head[:16]}, not {head[:16]}"
    if key is not None and _bare(_public(key)) != _bare(signature.key):
        return f"the run was signed by another key: {signature.key}"
    library = _library("serialization")
    refused = importlib.import_module("cryptography.exceptions").InvalidSignature
    try:
        public = library.load_ssh_public_key(signature.key.encode())
        public.verify(base64.b64decode(signature.signature), _DOMAIN + head.encode())
    # TypeError and AttributeError are raised if the key has another type.
    except (refused, ValueError, TypeError, AttributeError):
        return "the signature does not match the public key that it names"
    return ""


def _public(path: Path) -> str:
    """Return the public key in a file. Raise SpecError unless the file contains exactly one."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SpecError(f"--key {path}: {error}", fix=f"ls {path.parent}/*.pub") from None
    if len(lines) != 1 or not lines[0].startswith("ssh-"):
        raise SpecError(
            f"--key {path}: the file has {len(lines)} lines instead of one public key",
            expected="the .pub file of the key with which the run must have been signed",
            fix=f"ls {path.parent}/*.pub",
        )
    return lines[0]


def _bare(text: str) -> tuple[str, ...]:
    """Return the type and the data of a public key, without its comment."""
    return tuple(text.split()[:2])


def _private(path: Path, passphrase: str | None) -> Any:
    """Read an Ed25519 private key.

    Raises SpecError if the file cannot be read or contains another kind of key.
    """
    library, ed25519 = _library("serialization"), _library("asymmetric.ed25519")
    try:
        key = library.load_ssh_private_key(
            path.read_bytes(), passphrase.encode() if passphrase else None
        )
    except (OSError, ValueError, TypeError) as error:
        raise SpecError(
            f"--key {path}: {error}",
            expected="an ed25519 key in OpenSSH format",
            fix="ssh-keygen -t ed25519 -f site_key",
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SpecError(
            f"--key {path}: not an ed25519 key", fix="ssh-keygen -t ed25519 -f site_key"
        )
    return key


def _library(name: str) -> Any:
    """Import a module of the package cryptography. Only signing and checking signatures need the
    package.
    """
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{name}")
    except ImportError:
        raise SpecError(
            "signatures need the package cryptography", fix="pip install 'scaleproof[sign]'"
        ) from None
