"""The machines of a cluster that grows and shrinks: which are there, wanted, and given back."""
