"""The ports: what the domain asks of the world. Each is served by two real adapters under one contract suite."""
