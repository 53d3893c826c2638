"""What a payer may publish and spend."""
