"""Tests of `serve_app/http`."""
