"""The release that a deployment runs, upgrades without downtime, and the rotation of its key."""
