"""The agent kit: an agent's answers, its HTTP interface and its life as a process."""
