"""The routes of control, one module a noun; each reads or changes the state and holds no rule of its own."""
