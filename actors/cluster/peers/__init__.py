"""The exchanges of the timekeeper with peers: heartbeats and trust events."""
