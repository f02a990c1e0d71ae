"""Proof on the running engine: the tokens, the law or the bits of speculative decoding against plain decoding."""
