"""The tables, each described once: columns, types, and how a batch writes its rows."""
