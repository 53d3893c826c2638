"""One state machine over everything that moves money: a model of plain integers, and the rules."""
