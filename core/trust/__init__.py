"""Trust, decided without I/O: signatures over bodies, and later chains, rotation and scopes."""
