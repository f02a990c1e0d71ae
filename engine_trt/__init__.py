"""TensorRT engines. Nothing here yet: the torch target is the only engine; see the README's list of what is missing."""
