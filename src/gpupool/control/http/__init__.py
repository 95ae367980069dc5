"""The HTTP border of control: limits, credentials, errors and metrics, as plain ASGI layers around the routes."""
