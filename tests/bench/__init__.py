"""Of the measurements: what they compute from what they saw."""
