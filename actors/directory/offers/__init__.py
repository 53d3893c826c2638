"""Offers of agents: the prices that they ask, and the verifiers that they accept."""
