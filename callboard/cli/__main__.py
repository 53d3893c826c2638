"""Runs the command line as `python -m callboard.cli`, without the `callboard` script."""

from __future__ import annotations

from callboard.cli import main

main()
