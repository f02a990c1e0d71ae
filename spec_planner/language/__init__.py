"""Words in, ids out, and back: instruction → prompt → ids, ids → text → plan. Knows nothing of decoding."""
