"""The draft–verify core: standard library and numpy only. Start with ``contracts.py``, then ``loop.py``."""
