"""Batches between processes: channel, sockets, actor calls, and who uses them."""
