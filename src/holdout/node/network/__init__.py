"""What travels between members: transport, gossip, blobs, and what is refused."""
