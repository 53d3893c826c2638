"""JSON Schemas of capabilities: what they cost, what they refuse, which values they may meet."""
