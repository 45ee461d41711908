"""What outlives a crash: the chain, the blobs, and how both are checked."""
