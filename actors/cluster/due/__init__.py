"""Work that the timekeeper does when it is due: runs of triggers, deliveries to webhooks."""
