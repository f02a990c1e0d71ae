"""Drafters' networks as graphs: what is written, and the compiled networks that run them in torch's place."""
