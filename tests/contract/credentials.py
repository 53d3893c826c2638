"""The credentials of the shared deployment besides API keys: an issuer's tokens, the free tier."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "callboard-tests"
JWT_SECRET: Final = "a secret of the tests, 32 bytes."
FREE_TIER_KEY: Final = "free-for-all-tests"
KID: Final = "test-1"
# The same in every process of the tests: the deployment is told its public half.
ISSUERS_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"i" * 32)


def credential_settings(home: Path) -> str:
    """Write the issuer's key set; return the settings, as lines of `callboard.toml`."""
    file = home / "jwks.json"
    public: Any = jwt.algorithms.OKPAlgorithm.to_jwk(ISSUERS_KEY.public_key(), as_dict=True)
    file.write_text(json.dumps({"keys": [{**public, "kid": KID}]}), encoding="utf-8")
    return (
        f'jwks_url = "{file.as_uri()}"\njwt_issuer = "{ISSUER}"\njwt_audience = "{AUDIENCE}"\n'
        f'jwt_secret = "{JWT_SECRET}"\nfree_tier_key = "{FREE_TIER_KEY}"\n'
    )


def token(did: str, *, key: Any = ISSUERS_KEY, alg: str = "EdDSA", **claims: Any) -> str:
    """Return an access token of the issuer; a claim that is None is left out."""
    now_s = int(time.time())
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": did, "exp": now_s + 600, **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(kept, key, alg, headers={"kid": KID})


def public_pem() -> bytes:
    """Return the issuer's public key: what an attacker may try as a secret."""
    return ISSUERS_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
