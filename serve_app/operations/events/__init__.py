"""Operations on webhooks, which send audit entries to callers."""
