"""The identity of an agent: its keys and their recovery, its card, names and heir."""
