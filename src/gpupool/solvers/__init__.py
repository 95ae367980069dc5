"""Solving partial proofs of v2 plots: Chia's own solver library, kept in processes of its own."""
