"""The market's rules: prices, payments, ranking, auctions, stakes, quotas."""
