"""What ships beside the code: cluster files against Ray's own schemas, the lock, the Makefile."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def cluster_validator() -> Any:
    schema = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text("utf-8"))
    return jsonschema_rs.validator_for(schema)


def test_cluster_file_fits_rays_schema() -> None:
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    assert list(cluster_validator().iter_errors(cluster)) == []


def test_serve_file_fits_serves_schema_and_names_a_real_application() -> None:
    schema = import_module("ray.serve.schema")
    text = yaml.safe_load((ROOT / "serve.yaml").read_text(encoding="utf-8"))
    [application] = schema.ServeDeploySchema.model_validate(text).applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(import_module(module), name))


def test_lock_pins_every_requirement_by_hash_and_names_no_index() -> None:
    pins = re.findall(r"^([a-z0-9.\-]+)==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.M)
    requirements = re.findall(r"^[a-z0-9]\S*==", LOCK, re.M)
    assert len(pins) == len(requirements) > 100
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_lock_holds_every_declared_dependency() -> None:
    light, server = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (".", "packaging/server")
    )
    declared = light["dependencies"] + light["optional-dependencies"]["dev"]
    declared += [text for text in server["dependencies"] if not text.startswith("callboard==")]
    names = {re.split(r"[\[<>=; ]", text)[0].lower() for text in declared}
    locked = set(re.findall(r"^([a-z0-9.\-]+)==", LOCK, re.M))
    assert names <= locked


@pytest.mark.parametrize(
    "target",
    ["venv", "demo", "test", "test-fast", "faults", "first-hour", "soak", "bench", "lint", "wheels",
     "cluster-demo", "cluster-smoke"],
)  # fmt: skip
def test_makefile_has_the_target(target: str) -> None:
    planned = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize("words", ['say "hi" for $5', "it's `now`", "a\\b $(date) ; #"])
def test_make_passes_words_on_as_they_were_typed(words: str) -> None:
    shown = subprocess.run(
        [
            "make", "--no-print-directory", "--eval=shown: ;@printf '%s\\n' $(DEMO_ARGS)", "shown",
            f"WORDS={words}",
        ],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == f"--words\n{words}\n"


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text.splitlines()[0]
    assert "Version 2.0, January 2004" in text
    assert "APPENDIX: How to apply the Apache License" in text
