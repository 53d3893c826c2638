"""Rules of triggers: when a schedule is due, and which audit events start a run."""
