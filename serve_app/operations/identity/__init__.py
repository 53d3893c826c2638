"""Operations on identities: DIDs, names, key rotation, recovery, inheritance."""
