"""Operations on peers, and on the routes to peers."""
