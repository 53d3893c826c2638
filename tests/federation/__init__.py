"""Tests of what talks to other addresses."""
