"""`python -m callboard.cli`, for where the `callboard` script is not installed."""

from __future__ import annotations

from callboard.cli import main

main()
