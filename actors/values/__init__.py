"""Judges large replies and results, and builds large inputs, in a process beside the event loop."""
