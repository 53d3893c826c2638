"""The parts of every service process: slices of its event loop, a clock, logs, metrics."""
