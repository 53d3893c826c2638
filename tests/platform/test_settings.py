"""Settings: who wins, what is refused, what is masked; tested in processes of their own."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from core.settings import (
    Settings,
    SettingsError,
    about,
    build_settings,
    is_secret,
    parse_setting,
    setting_names,
)

ROOT = Path(__file__).resolve().parent.parent.parent


def shown(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `settings --output json` with an environment that names no other setting."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("CALLBOARD_")}
    return subprocess.run(
        [sys.executable, "-m", "serve_app.supervisor", "settings", "--home", str(home),
         "--output", "json", *arguments],
        cwd=ROOT, env=clean | variables, capture_output=True, text=True,
    )  # fmt: skip


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    toml = 'port = 8001\nhost = "0.0.0.0"\nregion = "file"\negress_allow = ["10.0.0.0/8"]\n'
    (tmp_path / "callboard.toml").write_text(toml, encoding="utf-8")
    reply = shown(
        tmp_path, "--region", "flag", CALLBOARD_REGION="environment", CALLBOARD_HOST="127.0.0.2"
    )
    rows = json.loads(reply.stdout)
    assert rows["region"] == {"value": "flag", "source": "flag"}
    assert rows["host"] == {"value": "127.0.0.2", "source": "environment CALLBOARD_HOST"}
    assert rows["port"] == {"value": 8001, "source": "callboard.toml"}
    assert rows["egress_allow"] == {"value": ["10.0.0.0/8"], "source": "callboard.toml"}
    assert rows["fee_bps"] == {"value": 500, "source": "default"}
    assert rows["home"]["value"] == str(tmp_path)


def test_secrets_are_masked(tmp_path: Path) -> None:
    reply = shown(
        tmp_path,
        CALLBOARD_SIGNING_SECRET="hush-hush",
        CALLBOARD_DATABASE_URL="postgresql://someone:hush-hush@db/callboard",
    )
    assert "hush-hush" not in reply.stdout
    rows = json.loads(reply.stdout)
    assert rows["signing_secret"]["value"] == "********"
    assert rows["database_url"]["value"] == "postgresql://someone:********@db/callboard"
    assert rows["jwt_secret"]["value"] == ""


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"CALLBOARD_FEE_BP": "1"}, "fee_bp"),
        ({"CALLBOARD_PORT": "http"}, "port"),
        ({"CALLBOARD_FEE_BPS": "10001"}, "fee_bps"),
        ({"CALLBOARD_DISPATCH": "everywhere"}, "dispatch"),
        ({"CALLBOARD_INFLIGHT_MAX": "10"}, "inflight_start"),
    ],
)
def test_wrong_setting_is_refused_by_name(
    tmp_path: Path, variables: dict[str, str], named: str
) -> None:
    reply = shown(tmp_path, **variables)
    assert reply.returncode == 2
    assert reply.stderr.startswith(f"callboard: {named}: got ")
    assert "expected" in reply.stderr


@pytest.mark.parametrize("text", ["port =", "no_such_setting = 1", 'port = "8000"', "port = true"])
def test_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "callboard.toml").write_text(text, encoding="utf-8")
    reply = shown(tmp_path)
    assert reply.returncode == 2
    assert "expected" in reply.stderr


def test_what_clients_read_is_no_setting(tmp_path: Path) -> None:
    reply = shown(tmp_path, CALLBOARD_URL="http://x", CALLBOARD_API_KEY="k")
    assert reply.returncode == 0


def test_secrets_stay_out_of_repr_and_settings_travel_between_processes() -> None:
    settings = build_settings({"deployment_key": "ab" * 32, "port": 9000})
    assert "abab" not in repr(settings)
    assert "9000" in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_every_setting_has_a_sentence_and_a_readable_default() -> None:
    defaults = Settings()
    for name in setting_names():
        assert about(name)
        value = getattr(defaults, name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        assert parse_setting(name, text) == value
    assert {name for name in setting_names() if is_secret(name)} == {
        "database_url", "owner_url", "deployment_key", "signing_secret", "jwt_secret",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 81}, "http://127.0.0.1:81"),
        ({"host": "::1"}, "http://[::1]:8000"),
        ({"public_url": "https://callboard.example"}, "https://callboard.example"),
    ],
)
def test_url_is_one_that_clients_can_use(values: dict[str, object], url: str) -> None:
    assert build_settings(values).url == url


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="no_such_setting"):
        build_settings({"no_such_setting": 1})
