"""The Ray actors: their creation, and the checks that replace ended or frozen processes."""
