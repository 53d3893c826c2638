"""The timekeeper's exchanges with peers: heartbeats and trust events."""
