"""What the planner will need in memory and what the machine has, before anything is loaded."""
