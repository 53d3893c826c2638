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
from serve_app.settings_from_env import (
    OTLP_EXPORTER,
    LoadedSettings,
    load_settings,
    read_settings,
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


def values(loaded: LoadedSettings) -> dict[str, tuple[object, str]]:
    return {name: (value, source) for name, value, source in loaded.rows()}


@pytest.mark.parametrize("region", ["EU West", "", "-eu", "e" * 65, "eu\n"])
def test_a_region_that_peers_would_refuse_is_refused_at_the_start(region: str) -> None:
    with pytest.raises(SettingsError, match="region") as refused:
        Settings(region=region)
    assert "1 to 64 letters" in str(refused.value)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    toml = 'port = 8001\nhost = "0.0.0.0"\nregion = "file"\negress_allow = ["10.0.0.0/8"]\n'
    (tmp_path / "callboard.toml").write_text(toml, encoding="utf-8")
    rows = values(
        load_settings(
            {"home": str(tmp_path), "region": "flag", "port": None},
            {"CALLBOARD_REGION": "environment", "CALLBOARD_HOST": "127.0.0.2"},
        )
    )
    assert rows["region"] == ("flag", "flag")
    assert rows["host"] == ("127.0.0.2", "environment CALLBOARD_HOST")
    assert rows["port"] == (8001, "callboard.toml")
    assert rows["egress_allow"] == (("10.0.0.0/8",), "callboard.toml")
    assert rows["fee_bps"] == (500, "default")
    assert rows["home"] == (str(tmp_path), "flag")


def test_a_setting_that_needs_a_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = "http://127.0.0.1:4318/v1/traces"
    flags = {"home": str(tmp_path), "otlp_endpoint": endpoint}
    assert load_settings(flags, {}).settings.otlp_endpoint == endpoint
    monkeypatch.setitem(sys.modules, OTLP_EXPORTER, None)  # as where it is not installed
    with pytest.raises(SettingsError, match=r"otlp_endpoint.*callboard-server\[otlp\]"):
        load_settings(flags, {})
    assert load_settings({"home": str(tmp_path)}, {}).settings.otlp_endpoint == ""


def test_settings_are_printed_with_their_sources_and_secrets_masked(tmp_path: Path) -> None:
    reply = shown(
        tmp_path,
        CALLBOARD_SIGNING_SECRET="hush-hush",
        CALLBOARD_DATABASE_URL="postgresql://someone:hush-hush@db/callboard",
    )
    assert "hush-hush" not in reply.stdout
    rows = json.loads(reply.stdout)
    assert rows["signing_secret"]["value"] == "********"
    assert rows["database_url"]["value"] == "postgresql://someone:********@db/callboard"
    assert rows["jwt_secret"] == {"value": "", "source": "default"}


def test_wrong_setting_ends_the_program_with_usage_status(tmp_path: Path) -> None:
    reply = shown(tmp_path, CALLBOARD_PORT="http")
    assert reply.returncode == 2
    assert reply.stderr == "callboard: port: got 'http', expected a whole number\n"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"CALLBOARD_PUBLIC_URL": "board.example"}, "public_url"),
        ({"CALLBOARD_JWKS_URL": "http://board.example/keys"}, "jwks_url"),
        ({"CALLBOARD_DISPATCH": "everywhere"}, "dispatch"),
        ({"CALLBOARD_DEPLOYMENT_KEY": "2:" + "ab" * 31}, "deployment_key"),
        ({"CALLBOARD_PAYER_WEIGHTS": "did:x:a=2,did:x:b"}, "payer_weights"),
        ({"CALLBOARD_CORS_ORIGINS": "https://a.example/"}, "cors_origins"),
        ({"CALLBOARD_CORS_ORIGINS": "https://a.example,*"}, "cors_origins"),
        ({"CALLBOARD_CORS_ORIGINS": "null"}, "cors_origins"),
        ({"CALLBOARD_MODEL_URL": "https://models.example/v1"}, "model_name"),
        ({"CALLBOARD_MODEL_URL": "file:///etc/passwd", "CALLBOARD_MODEL_NAME": "m"}, "model_url"),
        ({"CALLBOARD_MODEL_KEY": "a key\r\nHost: x"}, "model_key"),
        ({"CALLBOARD_TRUSTED_PROXIES": "10.0.0.1/8"}, "trusted_proxies"),
        ({"CALLBOARD_TRUSTED_PROXIES": "proxy.example"}, "trusted_proxies"),
        ({"CALLBOARD_TRUSTED_VERIFIERS": "did:x:a,judge"}, "trusted_verifiers"),
        ({"CALLBOARD_EGRESS_ALLOW": "10.0.0.0/33"}, "egress_allow"),
    ],
)
def test_wrong_setting_is_refused_by_name(
    tmp_path: Path, variables: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{named}: got .*, expected ") as refused:
        load_settings({"home": str(tmp_path)}, variables)
    said = str(refused.value)
    assert not [sign for sign in ("[", "(?", "tuple", "str ", "<") if sign in said], said


@pytest.mark.parametrize("name", ["fee_bps", "slash_fraud_bps", "slash_failure_bps"])
@pytest.mark.parametrize("value", ["-1", "10001", "0.5"])
def test_case_39_a_share_outside_0_to_10000_basis_points_does_not_start(
    tmp_path: Path, name: str, value: str
) -> None:
    variable = f"CALLBOARD_{name.upper()}"
    for fine in ("0", "10000"):
        load_settings({"home": str(tmp_path)}, {variable: fine})
    with pytest.raises(SettingsError, match=f"^{name}: got .*, expected "):
        load_settings({"home": str(tmp_path)}, {variable: value})


@pytest.mark.parametrize("text", ["port =", "no_such_setting = 1", "port = true"])
def test_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "callboard.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="expected"):
        load_settings({"home": str(tmp_path)}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('port = "abc"', 'port: got a string ("abc"), expected an integer'),
        ("port = [8000]", "port: got an array with an integer (8000), expected an integer"),
        ("port = 2026-11-28", "port: got a date or a time, expected an integer"),
        ("host = 1", "host: got an integer (1), expected a string"),
        ('cors_origins = "x"', 'cors_origins: got a string ("x"), expected an array of strings'),
        (
            'cors_origins = ["https://a.example", 5]',
            "cors_origins: got an array with an integer (5), expected an array of strings",
        ),
        ("ray_token = 12345", "ray_token: got an integer, expected a string"),
        (
            "fee-bps = 1",
            "fee-bps: got an unknown setting, expected one that `callboard settings` lists;"
            " did you mean 'fee_bps'?",
        ),
    ],
)
def test_an_error_in_the_file_names_the_types_of_toml(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "callboard.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        load_settings({"home": str(tmp_path)}, {})
    assert str(refused.value) == message


def test_a_file_that_is_no_text_is_refused_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "callboard.toml"
    file.write_bytes(b"port = 1 # \xff")
    with pytest.raises(SettingsError, match=r"callboard\.toml: got a byte that is not UTF-8 at 11"):
        load_settings({"home": str(tmp_path)}, {})
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsError, match=r"callboard\.toml: got .*, expected a file"):
        load_settings({"home": str(tmp_path)}, {})


def test_a_misspelt_variable_or_option_names_the_nearest_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'fee_bps'"):
        load_settings({"home": str(tmp_path)}, {"CALLBOARD_FEE_BP": "1"})
    with pytest.raises(SettingsError, match="did you mean 'region'"):
        load_settings({"home": str(tmp_path), "regoin": "x"}, {})


def test_what_clients_read_is_no_setting(tmp_path: Path) -> None:
    variables = {"CALLBOARD_URL": "http://x", "CALLBOARD_API_KEY": "k"}
    assert load_settings({"home": str(tmp_path)}, variables).settings.port == 8000


@pytest.mark.parametrize("key", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab" * 31 + " b"])
def test_a_deployment_key_that_is_not_32_bytes_is_refused(tmp_path: Path, key: str) -> None:
    """An empty one would let anybody forge result ids (issue, "Also")."""
    with pytest.raises(SettingsError, match="64 hex digits, which are 32 bytes") as refused:
        load_settings({"home": str(tmp_path)}, {"CALLBOARD_DEPLOYMENT_KEY": key})
    assert refused.value.name == "deployment_key"
    assert not key or key not in str(refused.value)
    (tmp_path / "deployment.key").write_text(key, encoding="ascii")
    with pytest.raises(SettingsError, match="64 hex digits"):
        load_settings({"home": str(tmp_path)}, {})


def test_the_service_does_not_start_without_a_deployment_key(tmp_path: Path) -> None:
    """As with `serve deploy serve.yaml`; `callboard settings` and `up` need none yet."""
    home = {"CALLBOARD_HOME": str(tmp_path)}
    assert load_settings({}, home).settings.deployment_key == ""
    with pytest.raises(SettingsError, match="callboard up"):
        read_settings(home)
    key = "AB" * 32
    assert read_settings({**home, "CALLBOARD_DEPLOYMENT_KEY": key}).deployment_key == key


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
        "database_url", "owner_url", "deployment_key", "signing_key",
        "signing_secret", "jwt_secret", "free_tier_key", "ray_token", "model_key",
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
