"""Recovery, row by row: guardians, custodian, time lock; verified proofs, and what they end.

Spec: Recovery request, /v1/identity/recover; decision agent-identity.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from nacl.signing import SigningKey

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    client,
    refusal,
    unique,
    wait,
)
from tests.contract.signers import Signer
from tests.contract.test_agents import did_of_key
from tests.contract.test_key_rotation import ROTATE, keyed, keys_of, public
from tests.contract.test_key_rotation import request as rotation
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
RECOVER = "/v1/identity/recover"
SOCIAL, BY_CUSTODIAN, TIME_LOCK = (
    f"{kind}_recovery" for kind in ("social", "custodian", "time_lock")
)


def signed(key: SigningKey, text: str) -> str:
    """Return a key's signature over a text."""
    return base64.b64encode(key.sign(text.encode()).signature).decode()


@dataclass
class Scene:
    """An agent with a key, two guardians of whom both must sign, and a custodian."""

    owner: Caller
    agent: RegisteredAgent
    key: SigningKey
    guardians: list[SigningKey]
    custodian: SigningKey
    new: SigningKey

    @property
    def path(self) -> str:
        """Where its guardians are."""
        return f"/v1/identity/guardians/{self.agent.did}"

    def body(self, kind: str, *signers: SigningKey, text: str = "", **more: object) -> Json:
        """Return a request with signatures, over the contract's text unless it is said."""
        message = text or f"recover:{self.agent.did}:{public(self.new)}"
        proof = [{"did": did_of_key(one), "signature": signed(one, message)} for one in signers]
        return {
            "agentDid": self.agent.did,
            "recoveryType": kind,
            "newPublicKey": public(self.new),
            **({"proof": {"signatures": proof}} if proof else {}),
            **more,
        }

    def keys(self) -> list[str]:
        """Return the agent's keys, the current one first."""
        return keys_of(self.owner, self.agent.did)


@pytest.fixture
def scene(payer: Caller, make_agent: MakeAgent) -> Scene:
    """An agent whose key may be recovered in each way."""
    old, new, one, two, custodian = (SigningKey.generate() for _ in range(5))
    made = Scene(payer, make_agent(owner=payer), old, [one, two], custodian, new)
    keyed(payer, made.agent, old)
    body = {
        "guardians": [did_of_key(one), did_of_key(two)],
        "threshold": 2,
        "custodianDid": did_of_key(custodian),
        "delayHours": 1,
    }
    answer(payer.http.put(made.path, json=body))
    return made


def test_guardians_are_named_by_the_owner_and_told_to_those_named(
    scene: Scene, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    """A guardian may be an agent with a key here, too; whom no key is known of can be none."""
    owner, stranger = scene.owner, make_caller()
    read = answer(owner.http.get(scene.path))
    assert (read["threshold"], read["delayHours"]) == (2, 1)
    assert read["guardians"] == [did_of_key(one) for one in scene.guardians]
    refusal(stranger.http.get(scene.path), 404, "NOT_FOUND")
    body = {"guardians": [did_of_key(scene.new)], "threshold": 1}
    refusal(stranger.http.put(scene.path, json=body), 403, "FORBIDDEN")
    guardian = make_agent(owner=stranger)
    unkeyed = {"guardians": [guardian.did], "threshold": 1}
    refusal(owner.http.put(scene.path, json=unkeyed), 400, "INVALID_REQUEST")
    keyed(stranger, guardian, SigningKey.generate())
    assert answer(owner.http.put(scene.path, json=unkeyed))["delayHours"] == 72
    itself = make_caller()
    answer(itself.http.get(scene.path), 404)
    assert answer(owner.http.put(scene.path, json={"guardians": [], "threshold": 0}))["success"]


def test_guardians_replace_a_key_in_one_request(scene: Scene, make_caller: MakeCaller) -> None:
    """The contract's form, brought by any caller; the old key has no rights from then on."""
    body = scene.body(SOCIAL, *scene.guardians, recoveryAddress="mail@example.org")
    made = answer(make_caller().http.post(RECOVER, json=body))
    assert (made["success"], made["status"], made["id"]) == (True, "completed", made["recoveryId"])
    assert (made["agentDid"], made["recoveryType"]) == (scene.agent.did, SOCIAL)
    assert (made["newPublicKey"], made["recoveryAddress"]) == (
        public(scene.new), "mail@example.org",
    )  # fmt: skip
    assert scene.keys() == [public(scene.new), public(scene.key)]
    own = rotation(scene.agent.did, scene.key, SigningKey.generate())
    refusal(scene.owner.http.post(ROTATE, json=own), 401, "INVALID_SIGNATURE")


def test_guardians_sign_one_after_the_other_over_the_requests_id(
    scene: Scene, make_caller: MakeCaller
) -> None:
    owner, bearer = scene.owner, make_caller()
    refusal(bearer.http.post(RECOVER, json=scene.body(SOCIAL)), 403, "FORBIDDEN")
    made = answer(owner.http.post(RECOVER, json=scene.body(SOCIAL)))
    assert (made["status"], made["signers"]) == ("pending", [])
    path, text = f"{RECOVER}/{made['id']}", made["message"]
    assert text == f"recover:{made['id']}:{scene.agent.did}:{public(scene.new)}"
    first, second = scene.guardians
    one = answer(bearer.http.post(RECOVER, json=scene.body(SOCIAL, first, text=text)))
    assert (one["id"], one["status"], one["signers"]) == (
        made["id"], "pending", [did_of_key(first)],
    )  # fmt: skip
    refusal(bearer.http.get(path), 404, "NOT_FOUND")
    both = answer(bearer.http.post(RECOVER, json=scene.body(SOCIAL, second, text=text)))
    assert both["status"] == "completed"
    read = answer(owner.http.get(path))
    assert read == {key: both[key] for key in read}
    refusal(owner.http.post(f"{path}/cancel"), 409, "NOT_CANCELLABLE")


def test_the_custodian_replaces_a_key_alone(scene: Scene, make_caller: MakeCaller) -> None:
    body = scene.body(BY_CUSTODIAN, scene.custodian)
    assert answer(make_caller().http.post(RECOVER, json=body))["status"] == "completed"
    assert scene.keys()[0] == public(scene.new)


def test_the_key_of_before_gives_nothing_that_lasts_while_replicas_remember_it(
    scene: Scene, deployment: RunningDeployment
) -> None:
    """A replica remembers a DID's key for a second, the writer does not. Decision
    permissions-and-keys."""
    did = scene.agent.did
    with client(deployment.url) as thief:
        thief.auth = Signer(did, scene.key)
        assert answer(thief.get(scene.path))["threshold"] == 2
        body = scene.body(BY_CUSTODIAN, scene.custodian)
        assert answer(scene.owner.http.post(RECOVER, json=body))["status"] == "completed"
        refused = thief.put(scene.path, json={"guardians": [], "threshold": 0})
        refusal(refused, 401, "UNAUTHORIZED")
        thief.auth = Signer(did, scene.new)
        wait(lambda: thief.get(scene.path).status_code == 200, "the new key to be known")
        assert answer(thief.put(scene.path, json={"guardians": [], "threshold": 0}))["success"]


Forge = Callable[[Scene], Json]
OTHER = SigningKey.generate()
FORGED: dict[str, Forge] = {
    "no signature": lambda s: s.body(SOCIAL),
    "one guardian twice": lambda s: s.body(SOCIAL, s.guardians[0], s.guardians[0]),
    "a stranger": lambda s: s.body(SOCIAL, s.guardians[0], OTHER),
    "another key's signature": lambda s: under(s, SOCIAL, s.guardians, OTHER),
    "random": lambda s: random_signatures(s, SOCIAL),
    "another text": lambda s: s.body(SOCIAL, *s.guardians, text="recover"),
    "another agent": lambda s: s.body(
        SOCIAL, *s.guardians, text=f"recover:did:net:other:{public(s.new)}"
    ),
    "another key": lambda s: s.body(
        SOCIAL, *s.guardians, text=f"recover:{s.agent.did}:{public(OTHER)}"
    ),
    "another request": lambda s: s.body(
        SOCIAL, *s.guardians, text=f"recover:{uuid.uuid4()}:{s.agent.did}:{public(s.new)}"
    ),
    "the old key as custodian": lambda s: s.body(BY_CUSTODIAN, s.key),
    "under the custodian's name": lambda s: under(s, BY_CUSTODIAN, [s.custodian], OTHER),
    "a time lock of a stranger": lambda s: s.body(TIME_LOCK, OTHER),
    "a time lock without a word": lambda s: s.body(TIME_LOCK),
}


def under(scene: Scene, kind: str, names: list[SigningKey], by: SigningKey) -> Json:
    """Return a request whose signatures stand under others' names."""
    body = scene.body(kind, *names)
    for one in body["proof"]["signatures"]:
        one["signature"] = signed(by, f"recover:{scene.agent.did}:{public(scene.new)}")
    return body


def random_signatures(scene: Scene, kind: str) -> Json:
    """Return a request with random signatures."""
    body = scene.body(kind, *scene.guardians)
    for one in body["proof"]["signatures"]:
        one["signature"] = base64.b64encode(os.urandom(64)).decode()
    return body


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_forged_recoveries_change_nothing(
    scene: Scene, make_caller: MakeCaller, forge: Forge
) -> None:
    response = make_caller().http.post(RECOVER, json=forge(scene))
    body = answer(response, response.status_code)
    assert body.get("code") in ("INVALID_SIGNATURE", "FORBIDDEN", "INVALID_REQUEST"), body
    assert scene.keys() == [public(scene.key)]


def test_signatures_of_one_kind_are_not_enough_for_another(scene: Scene) -> None:
    """Nor is a replay, for a key that stands in the history."""
    made = answer(scene.owner.http.post(RECOVER, json=scene.body(BY_CUSTODIAN, *scene.guardians)))
    assert made["status"] == "pending"
    other = scene.body(SOCIAL, *scene.guardians)
    refusal(scene.owner.http.post(RECOVER, json=other), 409, "CONFLICT")
    full = scene.body(BY_CUSTODIAN, scene.custodian)
    assert answer(scene.owner.http.post(RECOVER, json=full))["status"] == "completed"
    refusal(scene.owner.http.post(RECOVER, json=full), 409, "CONFLICT")
    back = {**full, "newPublicKey": public(scene.key)}
    back["proof"]["signatures"][0]["signature"] = signed(
        scene.custodian, f"recover:{scene.agent.did}:{public(scene.key)}"
    )
    refusal(scene.owner.http.post(RECOVER, json=back), 409, "CONFLICT")


def test_a_time_lock_waits_is_cancelled_by_the_current_key_and_runs_else(
    scene: Scene, make_caller: MakeCaller, deployment: RunningDeployment
) -> None:
    bearer, second = make_caller(), SigningKey.generate()
    body = scene.body(TIME_LOCK, scene.guardians[0])
    made = answer(bearer.http.post(RECOVER, json=body))
    assert (made["status"], made["endedAt"]) == ("waiting", None)
    assert made["completesAt"] > made["createdAt"]
    path, text = f"{RECOVER}/{made['id']}/cancel", f"cancel:{made['id']}"
    thief = make_caller()
    refusal(thief.http.post(path), 404, "NOT_FOUND")
    for forged in ("", signed(scene.guardians[0], text), signed(scene.key, made["id"])):
        refused = thief.http.post(path, json={"signature": forged})
        refusal(refused, 401, "INVALID_SIGNATURE")
    word = {"signature": signed(scene.key, text)}
    assert answer(thief.http.post(path, json=word))["status"] == "cancelled"
    refusal(bearer.http.post(RECOVER, json=body), 409, "CONFLICT")
    scene.new = second
    again = answer(bearer.http.post(RECOVER, json=scene.body(TIME_LOCK, scene.guardians[1])))
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        connection.execute(
            "UPDATE callboard.recovery SET waiting_ms = waiting_ms - 3600001 WHERE id = %s",
            (again["id"],),
        )
    wait(lambda: scene.keys()[0] == public(second), "the time lock to run")
    read = answer(scene.owner.http.get(f"{RECOVER}/{again['id']}"))
    assert (read["status"], read["completesAt"]) == ("completed", None)


def test_an_agent_without_guardians_and_a_did_key_cannot_be_recovered(
    payer: Caller, make_agent: MakeAgent, scene: Scene
) -> None:
    bare, key = make_agent(owner=payer), SigningKey.generate()
    for did, status, code in (
        (bare.did, 409, "CONFLICT"),
        (did_of_key(key), 409, "CONFLICT"),
        (unique("did:net:ghost-"), 404, "NOT_FOUND"),
    ):
        body = {**scene.body(TIME_LOCK), "agentDid": did}
        refusal(payer.http.post(RECOVER, json=body), status, code)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"recoveryType": "magic"}, "recoveryType"),
        ({"newPublicKey": "short"}, "newPublicKey"),
        ({"newPublicKey": base64.b64encode(bytes(32)).decode()}, "newPublicKey"),
        ({"agentDid": 5}, "agentDid"),
        ({"proof": {"signatures": [{"did": "did:net:a"}]}}, "proof.signatures[0].signature"),
        ({"proof": {"signature": "x"}}, "proof.signature"),
        ({"recoverTo": "x"}, "recoverTo"),
    ],
)
def test_bad_input_is_refused(payer: Caller, wrong: Json, path: str) -> None:
    body = {
        "agentDid": "did:net:ghost",
        "recoveryType": SOCIAL,
        "newPublicKey": public(SigningKey.generate()),
        **wrong,
    }
    refused = refusal(payer.http.post(RECOVER, json=body), 400, "INVALID_REQUEST")
    assert path in [problem["path"] for problem in refused["errors"]]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"guardians": [], "threshold": 1}, "threshold"),
        ({"guardians": ["did:net:a"], "threshold": 0}, "threshold"),
        ({"guardians": ["did:net:a"], "threshold": 2}, "threshold"),
        ({"guardians": ["did:net:a", "did:net:a"], "threshold": 1}, "guardians"),
        ({"guardians": [f"did:net:g{n}" for n in range(21)], "threshold": 1}, "guardians"),
        ({"guardians": ["did:net:ghost"], "threshold": 1}, "guardians"),
        ({"guardians": [], "threshold": 0, "custodianDid": "did:net:ghost"}, "custodianDid"),
        ({"guardians": [], "threshold": 0, "delayHours": 0}, "delayHours"),
        ({"guardians": [], "threshold": 0, "delay": 1}, "delay"),
    ],
)
def test_guardians_that_could_not_act_are_refused(scene: Scene, body: Json, path: str) -> None:
    refused = refusal(scene.owner.http.put(scene.path, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path
