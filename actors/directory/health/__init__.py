"""What an owner knows of agents' health: heartbeats, circuits, revocations, deregistrations."""
