"""Where requests may go: routing between regions and the policy of outgoing connections."""
