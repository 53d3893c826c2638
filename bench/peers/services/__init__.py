"""What the peers run: their workflows, by their own SDKs, in an environment of their own."""
