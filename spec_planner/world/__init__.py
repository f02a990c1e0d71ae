"""A world of facts: what a plan's steps need, what they change, and whether a goal is reached. No robot, no time."""
