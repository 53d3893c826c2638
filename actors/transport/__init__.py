"""Batched calls between processes: names, channels, sockets, actor calls, messages, the ledger."""
