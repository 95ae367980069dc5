"""The checks of ``gpupool doctor``: each looks at one thing, changes nothing, and says what it found.

`checks.all.run_checks` runs them all; every other module is one subject.
"""
