"""The rules of trust: permissions, signatures, tokens, derived keys, the audit chain. No I/O."""
