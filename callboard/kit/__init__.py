"""The agent kit: an agent's replies to dispatches, its HTTP interface and its process."""
