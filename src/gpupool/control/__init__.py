"""The control process: what is wanted, what is there, and the steps from one to the other.

It serves the control API, the agent link and the endpoints feed, and reconciles workloads with placements. It never
dials: agents, gateways and people come to it.
"""
