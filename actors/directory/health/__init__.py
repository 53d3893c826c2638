"""Health of agents as an owner knows it: heartbeats, circuits, declines, revocations."""
