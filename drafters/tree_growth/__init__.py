"""Which nodes a draft tree gets. Tokens and laws go through the ``DraftSampler``; no networks here."""
