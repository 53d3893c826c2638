"""Trust, decided without I/O: permissions, signatures, tokens, derived keys, the audit chain."""
