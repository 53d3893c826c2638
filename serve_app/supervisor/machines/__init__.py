"""The machines of a cluster: the checks before a machine joins, and the program behind `ray up`."""
