"""The ledger's processes: the writer, its standby, the checks of both, and the hand-over."""
