"""The supervisor of a deployment on one machine: it starts, restarts and ends the processes."""
