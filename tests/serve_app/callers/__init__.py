"""Tests of `serve_app/callers`."""
