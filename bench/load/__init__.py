"""What puts load on the service or the ledger, and what answers it: clients, agents, payments."""
