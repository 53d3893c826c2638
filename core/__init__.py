"""The decisions: states, money, trust and market rules, without I/O, clock or randomness."""
