"""docs/kubernetes: the manifests agree with cluster.yaml, serve.yaml and the service's settings.

KubeRay's schemas are not stored here. The members that the manifests use were looked up in the
types of `ray.io/v1` and are listed below, so that a misspelt one is seen.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from actors.cluster.scaling.ray_machines import API_RESOURCE, MACHINE_RESOURCE
from core.settings import setting_names
from serve_app.settings_from_env import load_settings
from serve_app.supervisor.__main__ import _parser
from tests.platform.deployments import ROOT

FOLDER = ROOT / "docs" / "kubernetes"
CLUSTER, API = yaml.safe_load_all((FOLDER / "raycluster.yaml").read_text(encoding="utf-8"))
SERVICE = yaml.safe_load((FOLDER / "rayservice.yaml").read_text(encoding="utf-8"))
SECRET = yaml.safe_load((FOLDER / "secret.yaml").read_text(encoding="utf-8"))
SPECS = {"RayCluster": CLUSTER["spec"], "RayService": SERVICE["spec"]["rayClusterConfig"]}

KUBERAY_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
KUBERAY_SCALED = {"enableInTreeAutoscaling", "autoscalerOptions"}
KUBERAY_AUTOSCALER = {"version", "idleTimeoutSeconds", "env"}
# The autoscaler's default, which KubeRay gives it no other of.
GCS_PORT = 6_379
KUBERAY_HEAD = {"rayStartParams", "template"}
KUBERAY_WORKERS = KUBERAY_HEAD | {"groupName", "replicas", "minReplicas", "maxReplicas"}
KUBERAY_SERVICE = {"serveConfigV2", "rayClusterConfig"}


def containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield from group["template"]["spec"]["containers"]


@pytest.mark.parametrize("kind", SPECS)
def test_members_are_kuberays(kind: str) -> None:
    spec = SPECS[kind]
    assert set(spec) == KUBERAY_CLUSTER | (KUBERAY_SCALED if kind == "RayCluster" else set())
    assert set(spec["headGroupSpec"]) == KUBERAY_HEAD
    assert [set(group) for group in spec["workerGroupSpecs"]] == [KUBERAY_WORKERS]
    assert set(SERVICE["spec"]) == KUBERAY_SERVICE
    assert {CLUSTER["apiVersion"], SERVICE["apiVersion"]} == {"ray.io/v1"}


@pytest.mark.parametrize("kind", SPECS)
def test_image_and_versions_are_those_of_this_code(kind: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    image = f"callboard:{project['version']}"
    assert {one["image"] for one in containers(SPECS[kind])} == {image}
    assert f"-t {image} ." in (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert SPECS[kind]["rayVersion"] == version("ray")


@pytest.mark.parametrize("kind", SPECS)
def test_ports_are_those_that_the_service_listens_on(kind: str) -> None:
    spec = SPECS[kind]
    port = load_settings({}, {}).settings.port
    assert spec["headGroupSpec"]["rayStartParams"]["port"] == str(GCS_PORT)
    for one in containers(spec):
        ports = {item["name"]: item["containerPort"] for item in one["ports"]}
        assert ports["serve"] == port
        assert ports.get("gcs-server", GCS_PORT) == GCS_PORT
    assert API["spec"]["ports"][0]["targetPort"] == port


def test_probes_ask_what_a_load_balancer_asks() -> None:
    for one in containers(CLUSTER["spec"]):
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert one[name]["httpGet"] == {"path": "/ready", "port": 8000}
            assert one[name]["failureThreshold"] * one[name]["periodSeconds"] >= 15
    operations = (ROOT / "serve_app/operations/service/health.py").read_text(encoding="utf-8")
    assert '@get("/ready"' in operations


def test_environment_names_real_settings_and_holds_what_cluster_yaml_asks_for() -> None:
    given = set(SECRET["stringData"])
    for one in containers(SPECS["RayService"]):
        given |= {item["name"] for item in one["env"]}
    ours = {name.removeprefix("CALLBOARD_").lower() for name in given if "CALLBOARD_" in name}
    assert ours <= set(setting_names())
    head = (ROOT / "cluster.yaml").read_text(encoding="utf-8").split("cluster_name:")[0]
    asked = set(re.findall(r"^# +(\w+) += ", head, re.M))
    assert asked <= ours


def test_commands_are_joins_that_the_command_line_takes() -> None:
    for one in containers(CLUSTER["spec"]):
        [text] = one["args"]
        words = text.split("callboard ")[-1].replace('"', "").split()
        arguments = _parser().parse_args(words)
        assert arguments.verb == "join"
        assert arguments.node_address == "$POD_IP"
        assert arguments.ports == GCS_PORT
        assert arguments.as_head or arguments.head == f"$FQ_RAY_IP:{GCS_PORT}"


def offered(kind: str) -> list[dict[str, int]]:
    """Return the resources of each group, read as KubeRay does: JSON in quotation marks."""
    spec = SPECS[kind]
    groups = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    return [json.loads(json.loads(one["rayStartParams"]["resources"])) for one in groups]


def test_autoscaler_counts_machines_and_is_let_in() -> None:
    """It knows what is asked for, not what replicas need, which `join` offers."""
    spec = SPECS["RayCluster"]
    assert spec["enableInTreeAutoscaling"] is True
    assert set(spec["autoscalerOptions"]) == KUBERAY_AUTOSCALER
    assert all(one == {MACHINE_RESOURCE: 1} for one in offered("RayCluster"))
    assert all(one == {API_RESOURCE: 1} for one in offered("RayService"))
    options = {one["name"]: one for one in spec["autoscalerOptions"]["env"]}
    assert options["RAY_AUTH_MODE"]["value"] == "token"
    key = options["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert key == {"name": SECRET["metadata"]["name"], "key": "RAY_AUTH_TOKEN"}
    assert SECRET["stringData"]["RAY_AUTH_TOKEN"] == SECRET["stringData"]["CALLBOARD_RAY_TOKEN"]
    assert int(SECRET["stringData"]["CALLBOARD_WORKFLOWS_PER_MACHINE"]) > 0


def test_application_is_that_of_serve_yaml() -> None:
    expected = yaml.safe_load((ROOT / "serve.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == expected
