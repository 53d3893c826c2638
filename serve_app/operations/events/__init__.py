"""Operations about events: audit entries that are sent and followed."""
