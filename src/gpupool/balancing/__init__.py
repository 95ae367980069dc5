"""Balancing: which of several unequal, unreliable nodes gets the next request. Pure; time is passed in.

``Pool`` is the whole of it for users; the proxy and the gateway bring the connections.
"""

from gpupool.balancing.budget import RetryBudget
from gpupool.balancing.learned_limit import LearnedLimit
from gpupool.balancing.node import Ticket
from gpupool.balancing.policy import Policy
from gpupool.balancing.pool import Pool
from gpupool.balancing.terms import NodeLimits, NodeState, NodeView, Outcome

__all__ = [
    "LearnedLimit",
    "NodeLimits",
    "NodeState",
    "NodeView",
    "Outcome",
    "Policy",
    "Pool",
    "RetryBudget",
    "Ticket",
]
