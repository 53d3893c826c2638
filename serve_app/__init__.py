"""What listens: the HTTP interface, the settings and the processes of a deployment."""
