"""The Ray actors, their names, and the watches over their processes."""
