"""What the API does about identity."""
