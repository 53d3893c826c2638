"""The agents as one owner knows them: cards, health, prices, stakes, revocations."""
