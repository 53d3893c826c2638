"""Finds the service's address and the caller's credential.

Both come from arguments, environment variables or the files of a local deployment. The client and
the command line use the same function. A deployment's admin key is sent only to that deployment's
address.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from callboard.errors import NO_DEPLOYMENT, Unavailable
from core.trust.did_key import did_of_key

# The bytes that precede the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410), as openssl writes it.
_PKCS8: Final = bytes.fromhex("302e020100300506032b657004220420")
_PEM: Final = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----")


class EmptyKey(ValueError):
    """`CALLBOARD_API_KEY` is set but empty; no other credential may be used in its place."""


@dataclass(frozen=True, slots=True)
class DidKey:
    """A DID with its private key, 32 bytes, which signs requests."""

    did: str
    seed: bytes = field(repr=False)

    @classmethod
    def read(cls, private_key: str | Path, did: str | None = None) -> DidKey:
        """Read a private key.

        Args:
            private_key: base64 of the 32 bytes of an Ed25519 key, with or without the prefix
                `ed25519:`; or PEM (PKCS #8); or the path of a file with one of these. A text that
                is not a key is read as a path.
            did: the DID that the key belongs to; None for the `did:key` of the key.

        Raises:
            ValueError: the private key is invalid.
            OSError: the file of a `Path` cannot be read.
        """
        # Imported here, because the command line loads this module and must start fast.
        from nacl.signing import SigningKey

        seed = read_seed(private_key)
        return cls(did or did_of_key(bytes(SigningKey(seed).verify_key)), seed)


@dataclass(frozen=True, slots=True)
class Location:
    """The service's address, and the caller's API key or DID key, if the caller has one."""

    url: str
    api_key: str | None = field(repr=False)
    did_key: DidKey | None = None


def read_seed(private_key: str | Path) -> bytes:
    """Return the 32 bytes of a private key.

    Args:
        private_key: the key or the path of its file; see `DidKey.read`.

    Raises:
        ValueError: the argument is neither a key nor the path of a file with a key.
        OSError: the file of a `Path` cannot be read.
    """
    if isinstance(private_key, str):
        try:
            return _seed(private_key.strip())
        except ValueError:
            pass
    try:
        text = Path(private_key).expanduser().read_text()
    except (OSError, ValueError):
        if isinstance(private_key, Path):
            raise
        # The message does not repeat the argument, which may be a private key with a typing error.
        raise ValueError(
            "the private key is neither base64 of 32 bytes nor PEM, nor the path of a readable file"
        ) from None
    try:
        return _seed(text.strip())
    except ValueError:
        raise ValueError(
            "the file holds no Ed25519 private key: base64 of 32 bytes, or PEM"
        ) from None


def default_home() -> Path:
    """Return the default deployment's folder: CALLBOARD_HOME, else a folder in the user's home."""
    named = os.environ.get("CALLBOARD_HOME")
    return Path(named) if named else Path.home() / ".local" / "share" / "callboard" / "default"


def locate(
    url: str | None,
    api_key: str | None,
    home: Path | None = None,
    did_key: DidKey | None = None,
) -> Location:
    """Return the address of the service, and the credential for it.

    The address is the first of these: `url`; the variable `CALLBOARD_URL`, unless `home` is given;
    the file `url` in the folder of the local deployment.

    Args:
        url: the service's address, None to look it up.
        api_key: the caller's API key. If both `api_key` and `did_key` are None, the credential is
            the first of these: the key in the file that `CALLBOARD_DID_KEY` names, with the DID
            `CALLBOARD_DID`; `CALLBOARD_API_KEY`; the file `admin.key` of the local deployment.
        home: the folder of a local deployment; None: the default folder. With `home` and without
            `url`, the variables are ignored.
        did_key: the key that signs the requests, instead of an API key.

    Raises:
        Unavailable: code NO_DEPLOYMENT, no deployment runs in the folder.
        EmptyKey: `CALLBOARD_API_KEY` is empty.
        ValueError: both kinds of key are given, or the file of `CALLBOARD_DID_KEY` has no key.
        OSError: the file of `CALLBOARD_DID_KEY` cannot be read.
    """
    if api_key is not None and did_key is not None:
        raise ValueError("got an API key and a DID's key, expected one of them")
    environment_url = os.environ.get("CALLBOARD_URL") or None
    if api_key is None and did_key is None and (home is None or url is not None):
        did_key = _environment_did_key()
        if did_key is None:
            api_key = os.environ.get("CALLBOARD_API_KEY")
            if api_key is not None and not api_key.strip():
                raise EmptyKey("CALLBOARD_API_KEY is empty: set it to an API key, or unset it")
    if url is not None:
        return Location(url, api_key, did_key)
    if home is None and environment_url is not None:
        return Location(environment_url, api_key, did_key)
    folder = home or default_home()
    try:
        found = (folder / "url").read_text().strip()
        if did_key is None and api_key is None:
            api_key = (folder / "admin.key").read_text().strip()
        return Location(found, api_key, did_key)
    except OSError as error:
        raise Unavailable(
            NO_DEPLOYMENT,
            0,
            f"no deployment is running in {folder} ({error.strerror}: {error.filename}); "
            "start one with `callboard up`, name its folder with CALLBOARD_HOME or --home, "
            "or set CALLBOARD_URL and CALLBOARD_API_KEY",
        ) from error


def _environment_did_key() -> DidKey | None:
    path = os.environ.get("CALLBOARD_DID_KEY")
    return DidKey.read(Path(path), os.environ.get("CALLBOARD_DID") or None) if path else None


def _seed(text: str) -> bytes:
    from core.trust.signatures import key_bytes

    begin, end = _PEM
    if not text.startswith(begin):
        return key_bytes(text)  # the text form of a private key is the same as of a public key
    body = base64.b64decode(text.removeprefix(begin).removesuffix(end))
    if len(body) != len(_PKCS8) + 32 or not body.startswith(_PKCS8):
        raise ValueError("PEM of another kind of key")
    return body.removeprefix(_PKCS8)
