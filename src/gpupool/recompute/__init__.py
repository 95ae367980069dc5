"""Recompute: giving a farm back the proof bits that its compressed plots left out."""
