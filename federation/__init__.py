"""What talks to peers: signed calls between deployments of different regions."""
