"""Read models: committed rows over a pool of connections, never in the writer's transaction."""
