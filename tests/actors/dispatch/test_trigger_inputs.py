"""`$.trigger.result` in the inputs of a run's nodes: as values, never as templates."""

from __future__ import annotations

from typing import Any

from actors.dispatch.order_inputs import (
    BUILT_IN_LOOP_BYTES_MAX,
    OrderInputs,
    build_in_loop,
    is_small,
)
from actors.ports import InputSources
from actors.workflows.workflow_restore import compile_stored_manifest
from core.errors import NodeErrorCode
from core.json_text import read_json, write_json
from core.workflow.events import Failure
from core.workflow.machine import WorkflowMachine

NODE = {
    "capabilityId": "cap.x",
    "payload": {"greeting": "dear {{who}}", "secret": "s3cret"},
    "inputMappings": {"who": "$.trigger.result.who", "whole": "$.trigger.result"},
}


def sources_of_run(result: Any) -> InputSources:
    """What the inputs of a run's node are made of, as a restored owner finds it."""
    config = {"templateId": "t", "version": 1, "depth": 0, "deliveryId": "d", "result": result}
    manifest = {"nodes": {"a": NODE}, "trigger": {"type": "webhook", "config": config}}
    compiled = compile_stored_manifest(write_json(manifest).decode())
    machine = WorkflowMachine("w", compiled, hold_micro=0, reserved={"a": 0}, deadline_ms=1)
    return InputSources(compiled.nodes["a"], machine.results_for("a"))


def test_a_node_maps_what_started_the_run() -> None:
    built = build_in_loop(sources_of_run({"who": "Ada"}), 10_000)
    assert isinstance(built, OrderInputs)
    assert read_json(built.inputs.inputs) == {
        "greeting": "dear Ada",
        "secret": "s3cret",
        "who": "Ada",
        "whole": {"who": "Ada"},
    }
    assert built.parents == {}


def test_templates_in_what_started_the_run_are_not_filled() -> None:
    """Goal: who calls a hook cannot read the payload of the template by `{{secret}}`."""
    built = build_in_loop(sources_of_run({"who": "{{secret}}"}), 10_000)
    assert isinstance(built, OrderInputs)
    inputs = read_json(built.inputs.inputs)
    assert (inputs["greeting"], inputs["who"]) == ("dear {{secret}}", "{{secret}}")


def test_a_member_that_the_cause_lacks_fails_the_node() -> None:
    built = build_in_loop(sources_of_run({"whom": 1}), 10_000)
    assert isinstance(built, Failure)
    assert built.code is NodeErrorCode.INPUT_MAPPING_FAILED
    assert "$.trigger.result.who" in built.message


def test_what_started_the_run_counts_in_the_size_of_a_dispatch() -> None:
    built = build_in_loop(sources_of_run({"who": "x" * 6_000}), 10_000)
    assert isinstance(built, Failure)
    assert built.code is NodeErrorCode.INPUT_TOO_LARGE
    assert is_small(sources_of_run({"who": "x" * 1_000}))
    assert not is_small(sources_of_run({"who": "x" * BUILT_IN_LOOP_BYTES_MAX}))
