"""The demonstration that `callboard demo` runs: a workflow with six agents, on a real service."""
