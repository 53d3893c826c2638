"""The model that the shared deployment may ask: nothing listens there but within a test."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.platform.deployments import RunningDeployment
from tests.platform.stub_model import Answer, StubModel, stub_model

MODEL_KEY = "a-key-of-the-model"
# Longer than any test takes, so that none of them passes because the wait is over.
MODEL_TIMEOUT_S = 30


def model_settings(port: int) -> str:
    """Return the settings, as lines of `callboard.toml`."""
    return (
        f'model_url = "http://127.0.0.1:{port}/v1"\nmodel_name = "m-1"\n'
        f'model_key = "{MODEL_KEY}"\nmodel_timeout_ms = {MODEL_TIMEOUT_S * 1_000}\n'
    )


@contextlib.contextmanager
def model_of(deployment: RunningDeployment, answer: Answer | None) -> Iterator[StubModel]:
    """Serve the deployment's model until the block is left.

    Args:
        answer: as of `stub_model`.
    """
    settings = tomllib.loads((deployment.home / "callboard.toml").read_text(encoding="utf-8"))
    port = urlsplit(settings["model_url"]).port
    assert port is not None
    with stub_model(answer, port=port) as model:
        yield model
