"""Who may have how much of what is scarce: turns, shares and quotas of payers."""
