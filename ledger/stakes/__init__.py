"""Stakes of agents: put up, locked with work, slashed."""
