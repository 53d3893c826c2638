"""Batches between processes: names, channel, sockets, actor calls, messages, ledger client."""
