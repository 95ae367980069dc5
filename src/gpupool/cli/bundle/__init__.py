"""The support bundle: everything that helps another person to find a fault, and no secret."""
