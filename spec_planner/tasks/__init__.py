"""Tasks to train and measure planners on: an instruction, a scene, the goal and an expert's plan."""
