"""What agents offer: the prices that they ask, and whom they accept as verifiers."""
