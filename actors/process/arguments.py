"""The settings of a deployment as arguments of its actors, by name.

A detached actor keeps its arguments and may be restarted with them by newer or older code. Values
by position would shift silently when a setting is added; by name, an unknown setting is left out
and a missing one takes its default. Decision messages-and-large-values.
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
    """Return an actor's settings; log and leave out those that this code does not know.

    Raises:
        SettingsError: values that are valid one by one contradict each other.
    """
    settings, left_out = known_settings(values)
    for reason in left_out:
        log.warning("setting not taken over: %s", reason)
    return settings
