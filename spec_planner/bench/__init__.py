"""What ``spec-planner bench`` measures: plans carried out in the symbolic world, and times under load."""
