"""Language and decoding composed into one call; no ROS here."""
