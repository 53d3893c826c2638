"""Chooses the files of the wheel `callboard-server`: those that the light wheel leaves out.

The light wheel's list, in the pyproject.toml at the root, is the only one. Decision
requests-json-and-client.
"""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("core", "ledger", "federation", "actors", "serve_app", "callboard")


class ServerFiles(BuildHookInterface[Any]):
    """Adds every file of the packages that is not of the light wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, from where they are to where they go; see hatchling's build hooks."""
        checkout = Path(self.root).parents[1]
        build_data["force_include"] |= {
            str(checkout / path): str(path) for path in server_files(checkout)
        }


def server_files(checkout: Path) -> list[PurePath]:
    """Return the files of the server's wheel, as paths in the checkout."""
    declared = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    light = declared["tool"]["hatch"]["build"]["targets"]["wheel"]
    found = [
        file.relative_to(checkout)
        for package in PACKAGES
        for file in sorted((checkout / package).rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    ]
    return [
        path
        for path in found
        if is_within(path, light["exclude"]) or not is_within(path, light["only-include"])
    ]


def is_within(path: PurePath, places: list[str]) -> bool:
    """Tell whether a path is one of these places or below one."""
    return any(path.is_relative_to(place) for place in places)
