"""Proofs of space: what recovering dropped proof bits means, without a network or a framework.

Modules that touch numba are imported only by those who compute (`decompressor`, `verification` and what they lean
on). `parameters`, `line_points`, `proofs`, `truncation`, `quality` and `errors` are plain Python, so that a
machine without the ``recompute`` extra can still build requests and read answers.
"""
