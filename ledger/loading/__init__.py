"""What the writer reads before it decides a batch, where its books do not know it yet."""
