"""The parts that service processes share: slices of the event loop, a clock, logs, metrics."""
