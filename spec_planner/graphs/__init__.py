"""ONNX graphs written node by node, of the target and of drafters' networks, for every engine that runs them."""
