"""The HTTP interface, the settings and the supervisor of a deployment."""
