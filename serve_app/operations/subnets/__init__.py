"""Operations on subnets and their policies."""
