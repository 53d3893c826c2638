"""Actors that older code made are started again by newer code: none of them dies for good.

Goal: a setting that is added in the middle of `Settings` shifts no value of a detached actor's
arguments. Method: the victim runs from a copy of the code; the copy gets a setting, then the
processes of the writer and of the owner are killed, and a workflow must run as before. Issue row
16; decision messages-and-large-values.
"""

from __future__ import annotations

import httpx
import pytest

from tests.contract.stub_agent import stub_agent
from tests.faults.victims import await_one, kill, wait
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

FIRST_SETTING = "    host: str = _setting("
ADDED = '    a_newer_bound: int = _setting(7, "a bound that older code does not know", low=1)\n'
CAPABILITY = "cap.newer-code.v1"


def test_an_added_setting_does_not_end_the_actors_that_older_code_made(
    victim: RunningDeployment,
) -> None:
    own = {"x-api-key": victim.admin_key}
    with (
        stub_agent() as agent,
        httpx.Client(base_url=victim.url, headers=own, timeout=90.0) as http,
    ):
        card = {
            "did": "did:net:newer-code",
            "endpoint": agent.url,
            "version": 1,
            "capabilities": [{"id": CAPABILITY, "description": "A test's"}],
        }
        assert http.post("/v1/agents/register", json={"acard": card}).status_code == 200

        def status_of_a_run() -> object:
            manifest = {"nodes": {"a": {"capabilityId": CAPABILITY}}}
            headers = {"Prefer": "wait=30"}
            reply = http.post("/v1/workflows/publish", json=manifest, headers=headers)
            return reply.json()["status"]

        assert status_of_a_run() == "success"
        settings = victim.code / "core" / "settings.py"
        text = settings.read_text(encoding="utf-8")
        assert text.count(FIRST_SETTING) == 1
        settings.write_text(text.replace(FIRST_SETTING, ADDED + FIRST_SETTING), encoding="utf-8")
        for kind in ("workflows", "ledger"):
            killed = kill(victim, kind)
            await_one(victim, kind, after=killed)
        wait(lambda: status_of_a_run() == "success", "a workflow of the newer code's owner")
