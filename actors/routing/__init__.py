"""Where a workflow goes: the owners that live, and how a publish reaches one of them."""
