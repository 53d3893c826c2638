"""Rules of triggers: when a schedule is due, and which events start a run."""
