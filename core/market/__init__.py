"""Rules of the market: prices, payments, ranking, auctions, stakes and quotas."""
