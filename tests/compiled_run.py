"""Runs pytest on the compiled form of the proxy's modules: ``python -P tests/compiled_run.py ARGUMENTS``."""

import sys

from gpupool.recompute.proxy.compiled import in_use, prefer

why_not = prefer()
if why_not is not None:
    sys.exit(f"The compiled form does not run here: {why_not}. Run: make compiled")

import pytest  # noqa: E402 - only after that

import gpupool.recompute.proxy.dispatching  # noqa: E402, F401

if not in_use():
    sys.exit("The sources were loaded all the same.")
sys.exit(pytest.main(sys.argv[1:]))
