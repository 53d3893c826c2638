"""The service beside DBOS and Restate: same machine, same agents, same graphs, one job."""
