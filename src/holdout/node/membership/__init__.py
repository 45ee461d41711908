"""Who belongs to a network: keys, certificates, the genesis file."""
