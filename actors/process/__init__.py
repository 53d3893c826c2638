"""What every process of the service has: an event loop held in slices, a clock, logs, metrics."""
