"""Adapters of the port `fleet.ports.validator`: what the pool says to those who publish apps and pay for them."""
