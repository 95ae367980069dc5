"""Runtimes: how a node runs what is placed on it, each behind the port `gpupool.fleet.ports.runtime`."""
