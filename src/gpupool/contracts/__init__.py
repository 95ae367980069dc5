"""Contracts: the messages that cross process borders, as strict pydantic models, and typed clients that send them.

Processes never import each other; they meet here.
"""
