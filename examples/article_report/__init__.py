"""Six agents and one workflow that turn an article into a short report."""
