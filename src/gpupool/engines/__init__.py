"""Launchers of inference engines, each run by a chute as its own process.

Nothing in the product imports them: a chute's command names one (``python -m gpupool.engines.llamacpp``), so an
engine that crashes, leaks or needs odd libraries takes down one workload and never the agent. `specs/` holds the
workload specs that come with the product.
"""
