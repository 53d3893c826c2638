"""The one writer: what a batch of commands reads, comes to, and how it is committed."""
