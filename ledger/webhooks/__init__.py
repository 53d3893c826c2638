"""Webhooks and what is sent to them: operational rows, never audited."""
