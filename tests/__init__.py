"""The tests mirror the packages; `contract`, `simulation` and `faults` stand beside them."""
