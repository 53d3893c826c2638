"""Operations on capabilities: their versions."""
