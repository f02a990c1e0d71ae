"""TensorRT engines of targets and drafters: export, build, readback and run time. Where to begin: docs/tensorrt.md."""
