"""How payers share limited resources: round-robin queues, fair shares and quotas."""
