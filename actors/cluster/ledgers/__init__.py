"""The ledger's processes: the writer's actor, its standby, who watches them, the hand-over."""
