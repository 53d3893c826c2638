"""The egress policy: the addresses to which the service may connect."""
