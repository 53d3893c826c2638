"""Reads the settings; the only reader of environment variables in the service.

Order of precedence: flag, environment, `callboard.toml`, default. The source of each value is
stored, so that `callboard settings` can print it. The processes of a deployment are started with
`child_environment`, and read their settings with the same functions.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from core.settings import (
    Settings,
    SettingsError,
    build_settings,
    is_secret,
    parse_setting,
    setting_names,
)
from core.trust.deployment_keys import FORM
from serve_app.supervisor.deployment import Deployment, default_home, run_folder_of

PREFIX = "CALLBOARD_"
DEPLOYMENT_MARK = f"{PREFIX}DEPLOYMENT"
OTLP_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
# Variables that are not settings: clients read them, or they mark a deployment's processes.
_NOT_SETTINGS = {
    "CALLBOARD_URL",
    "CALLBOARD_API_KEY",
    "CALLBOARD_DID",
    "CALLBOARD_DID_KEY",
    DEPLOYMENT_MARK,
}
# The variable with the id that an autoscaler gave this machine, and all variables with which an
# autoscaler configures Ray.
AUTOSCALERS_MACHINE = "RAY_CLOUD_INSTANCE_ID"
AUTOSCALERS_NAMES = frozenset(
    {
        AUTOSCALERS_MACHINE,
        "RAY_NODE_TYPE_NAME",
        "RAY_USAGE_STATS_KUBERAY_IN_USE",
        "RAY_enable_autoscaler_v2",
    }
)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and the source of each value by the setting's name."""

    settings: Settings
    sources: Mapping[str, str]

    @property
    def deployment(self) -> Deployment:
        return Deployment(Path(self.settings.home), Path(self.settings.run_folder))

    def rows(self) -> list[tuple[str, object, str]]:
        """Return the name, the value (secrets are masked) and the source of every setting."""
        return [
            (name, masked(name, getattr(self.settings, name)), self.sources[name])
            for name in setting_names()
        ]


def load_settings(
    flags: Mapping[str, str | None] | None = None, environment: Mapping[str, str] | None = None
) -> LoadedSettings:
    """Return the settings of this process, with their sources.

    Args:
        flags: settings from the command line by name; None means that the flag is absent.
        environment: the variables to read; None: the environment of this process.

    Raises:
        SettingsError: a name is unknown, a value has the wrong type or range, the deployment key is
            set but empty, or a setting needs a package that is not installed.
    """
    variables = os.environ if environment is None else environment
    given = {name: text for name, text in (flags or {}).items() if text is not None}
    home = Path(given.get("home") or variables.get(f"{PREFIX}HOME") or default_home())
    home = Path(os.path.abspath(home.expanduser()))
    values: dict[str, object] = {"home": str(home), "run_folder": str(run_folder_of(home))}
    sources = dict.fromkeys(setting_names(), "default")
    sources["run_folder"] = "derived from home"
    key_file = Deployment(home, run_folder_of(home)).deployment_key_file
    if key_file.exists():
        values["deployment_key"] = key_file.read_text(encoding="ascii").strip()
        sources["deployment_key"] = str(key_file)
    for source, found in (
        ("callboard.toml", _from_file(home / "callboard.toml")),
        ("environment", _from_environment(variables)),
        ("flag", {name: parse_setting(name, text) for name, text in given.items()}),
    ):
        for name, value in found.items():
            if name == "home":
                sources["home"] = source
                continue  # the value may be relative; `values` has the absolute path already
            values[name] = value
            sources[name] = (
                f"environment {PREFIX}{name.upper()}" if source == "environment" else source
            )
    if values.get("deployment_key") == "":
        got = f"nothing, by {sources['deployment_key']}"
        raise SettingsError("deployment_key", got, FORM)
    settings = build_settings(values)
    _check_extras(settings)
    return LoadedSettings(settings, sources)


def _check_extras(settings: Settings) -> None:
    """Refuse settings that need a package which is not installed."""
    if not settings.otlp_endpoint:
        return
    try:
        import_module(OTLP_EXPORTER)
    except ModuleNotFoundError:
        expected = f"the package of {OTLP_EXPORTER}: pip install 'callboard-server[otlp]'"
        raise SettingsError("otlp_endpoint", repr(settings.otlp_endpoint), expected) from None


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a process of the service, which needs a deployment key.

    Args:
        environment: see `load_settings`.

    Raises:
        SettingsError: see `load_settings`; or there is no deployment key.
    """
    settings = load_settings(environment=environment).settings
    if not settings.deployment_key:
        expected = (
            f"{FORM}: `callboard up` makes one at its first start;"
            f" otherwise set {PREFIX}DEPLOYMENT_KEY, the same on all machines"
        )
        raise SettingsError("deployment_key", "nothing", expected)
    return settings


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process of the deployment.

    The variables of Ray in this process's environment are omitted: a user may have set them for
    another cluster. The variables with which an autoscaler describes this machine are kept.

    Args:
        extra: variables to add.
    """
    own = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("RAY_") or name in AUTOSCALERS_NAMES
    }
    return own | dict(extra)


def settings_as_environment(loaded: LoadedSettings, **changed: str) -> dict[str, str]:
    """Return the variables from which a child process reads the same settings.

    Values in the home's files (`callboard.toml`, `deployment.key`) are not included, because
    `/proc` shows environments. The child reads the files itself.

    Args:
        loaded: the settings of this process.
        changed: values by setting name that replace those of `loaded`.
    """
    environment = {f"{PREFIX}HOME": loaded.settings.home}
    for name, source in loaded.sources.items():
        if source == "flag" and name != "home":
            value = getattr(loaded.settings, name)
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            environment[f"{PREFIX}{name.upper()}"] = text
    for name, text in changed.items():
        environment[f"{PREFIX}{name.upper()}"] = text
    return environment


def masked(name: str, value: object) -> object:
    """Return a setting's value for display. A secret is masked; of a URL, only the password is."""
    if not is_secret(name) or value == "":
        return value
    if isinstance(value, str) and "://" in value:
        return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:********@", value)
    return "********"


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as defect:
        got = f"an error ({defect.strerror})"
        raise SettingsError(str(path), got, "a file that this user may read") from None
    except UnicodeDecodeError as defect:
        got = f"a byte that is not UTF-8 at {defect.start}"
        raise SettingsError(str(path), got, "a TOML file") from None
    except tomllib.TOMLDecodeError as defect:
        raise SettingsError(str(path), str(defect), "a TOML file") from None
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }


def _from_environment(variables: Mapping[str, str]) -> dict[str, object]:
    """Return the settings in CALLBOARD_* variables, by name.

    Raises:
        SettingsError: a name is unknown (a misspelt one would have no effect), or a value has the
            wrong type.
    """
    return {
        variable.removeprefix(PREFIX).lower(): parse_setting(
            variable.removeprefix(PREFIX).lower(), text
        )
        for variable, text in variables.items()
        if variable.startswith(PREFIX) and variable not in _NOT_SETTINGS
    }
