"""What a batch of commands comes to: decided in memory, on known books."""
