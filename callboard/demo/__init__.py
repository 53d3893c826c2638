"""The demonstration: real service, real agents, real books. `callboard demo` runs it."""
