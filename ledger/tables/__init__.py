"""Descriptions of the tables: columns, types, constraints, and how a batch writes rows."""
