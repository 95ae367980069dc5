"""gpupool: one pool of idle GPUs that serves inference apps and recomputes proof bits.

The package is laid out in layers that point one way (entry, processes, adapters and contracts, capabilities,
domain, base); `pyproject.toml` holds the import contracts that prove it.
"""

__version__ = "0.1.0"
