"""The machines of a cluster that grows and shrinks: requested, drained and released."""
