"""One owner's cache of agents: cards, health, prices, stakes, revocations."""
