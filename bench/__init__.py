"""Benchmarks: they print figures and assert nothing. Each runs by `make bench` or alone."""
