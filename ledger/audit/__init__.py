"""The index of the audit chain by party, kept beside the writer."""
