"""Who an agent is: its keys and their recovery, its card, name and heir."""
