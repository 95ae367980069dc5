"""The agent: one process a node that makes it known to control and runs what control places on it."""
