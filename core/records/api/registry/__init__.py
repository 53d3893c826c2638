"""What the registry shows beside agents: versions of capabilities, and of cards."""
