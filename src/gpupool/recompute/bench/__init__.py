"""Trying every device of this machine with proofs that are known: is it right, how fast is it, how much can it farm."""
