"""What decides: states, money, trust and market rules, without I/O, clock or randomness."""
