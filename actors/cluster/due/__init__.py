"""What the timekeeper does because it is due: runs of triggers, deliveries to webhooks."""
