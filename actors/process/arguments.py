"""The settings of a deployment as arguments of its actors: by name, whatever code receives them.

A detached actor keeps the arguments that it was made with, and is started anew with them by code
that may be newer or older. Values that travel by position would shift silently when a setting is
added; by name, an unknown one is left out and a missing one takes its default. Decision 0094.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from core.settings import Settings, known_settings, setting_names

log = logging.getLogger("callboard.settings")


def settings_argument(settings: Settings) -> dict[str, object]:
    """Return the settings by name."""
    return {name: getattr(settings, name) for name in setting_names()}


def parse_settings_argument(values: Mapping[str, object]) -> Settings:
    """Return the settings that an actor was given, as far as this code knows them.

    Raises:
        SettingsError: values that are good one by one contradict each other.
    """
    settings, left_out = known_settings(values)
    for reason in left_out:
        log.warning("setting not taken over: %s", reason)
    return settings
