"""Entry layer: parsing, printing and wiring. Heavy imports are lazy, so that ``--help`` answers at once."""
