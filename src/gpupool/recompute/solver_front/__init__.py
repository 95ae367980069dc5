"""The solver front: one address where stock Chia farmers have v2 partial proofs completed by any number of servers."""
