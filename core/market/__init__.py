"""The market's rules: what a node costs, who gets which part."""
