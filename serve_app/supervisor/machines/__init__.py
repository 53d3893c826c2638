"""The machines of a cluster: what each needs to join, how `ray up` starts and ends them all."""
