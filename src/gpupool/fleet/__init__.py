"""The domain: nodes, devices, workloads, placements, claims, endpoints, jobs, and the ports they are kept and run by.

Plain typed dataclasses and state machines; no network, no framework, no database.
"""
