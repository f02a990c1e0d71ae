"""What every training here shares: tasks read, sequences packed, the loop over steps, states on disk."""
