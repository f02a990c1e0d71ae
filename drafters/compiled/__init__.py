"""Drafters' networks as an engine runs their graphs; each answers like its torch twin (``draft_net.py``)."""
