"""The Ray actors, what they are named, and who watches that they live."""
