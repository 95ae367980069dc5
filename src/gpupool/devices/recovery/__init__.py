"""Recovering proof bits on GPUs: one kernel source, hosted by OpenCL and by CUDA."""
