"""Base layer: what every other layer may lean on and that leans on none of them."""
