"""JSON Schemas of capabilities: their cost, the validation of values, and checks of mappings."""
