"""Tasks: what a payer says of one that has ended."""
