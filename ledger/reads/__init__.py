"""Code that the reads of all features share: reads of committed rows outside the writer."""
