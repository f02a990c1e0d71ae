"""How the drafters that are networks learn: what they are shown, what they are asked, and how they are stored."""
