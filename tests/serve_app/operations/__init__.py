"""Tests of `serve_app/operations`."""
