"""Operations on capabilities and their versions."""
