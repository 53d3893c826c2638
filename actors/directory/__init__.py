"""The directory: an owner's cache of agents, with cards, health, prices, stakes, revocations."""
