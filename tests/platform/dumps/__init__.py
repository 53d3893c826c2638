"""The dump of a whole deployment, what makes it, and what becomes of it."""
