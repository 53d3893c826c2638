"""A cluster on hosts made of namespaces on one machine, by the real `ray up`."""
