"""The systems that are measured: how each is started, asked, watched and ended."""
