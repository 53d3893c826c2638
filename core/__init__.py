"""The rules of states, money, trust and the market. No I/O, no clock, no randomness."""
