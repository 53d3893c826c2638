"""Several machines in one: deployments on more than one raylet, measured."""
