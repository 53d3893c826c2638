"""Settings travel by name: what an actor was made with serves the code that starts it again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from actors.process.startup import parse_settings_argument, settings_argument
from core.settings import Settings, SettingsError


def arrived(values: dict[str, Any]) -> Settings:
    """Return settings as an actor builds them from its pickled arguments."""
    return parse_settings_argument(pickle.loads(pickle.dumps(values)))


def test_settings_come_back_as_they_were() -> None:
    settings = Settings(port=9_000, payer_weights=("did:x:a=3",), deployment_key="11" * 32)
    assert arrived(settings_argument(settings)) == settings


def test_arguments_from_before_a_setting_was_added_take_its_default() -> None:
    """By position every later value would have shifted, and the actor died for good."""
    old = settings_argument(Settings(port=9_000, nodes_max=7, stake_bps=11))
    del old["host"], old["fee_bps"]
    assert arrived(old) == Settings(port=9_000, nodes_max=7, stake_bps=11)


def test_arguments_of_a_newer_code_lose_what_is_unknown_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    newer = {"a_new_bound": 3, **settings_argument(Settings(port=9_000))}
    assert arrived(newer) == Settings(port=9_000)
    assert "a_new_bound" in caplog.text


@pytest.mark.parametrize("value", [0, "9000", None, True])
def test_value_that_is_not_accepted_any_more_takes_the_default(value: object) -> None:
    assert arrived({**settings_argument(Settings()), "port": value}).port == Settings().port


def test_secret_that_is_left_out_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    arrived({**settings_argument(Settings()), "jwt_secret": 5, "old_secret": "hush"})
    assert "hush" not in caplog.text


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingsError):
        arrived({"model_url": "https://models.example/v1", "model_name": ""})
