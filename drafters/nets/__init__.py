"""The networks of the trained drafters, in torch, and the layers that they share."""
