"""Which nodes a draft tree gets. Shapes and values, no networks."""
