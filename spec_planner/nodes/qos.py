"""One quality-of-service profile per kind of topic. Each call makes a fresh one: ROS writes QoS overrides into it."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy


def command() -> QoSProfile:
    """An instruction: must arrive, and only the newest matters."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)


def latched() -> QoSProfile:
    """State a late subscriber wants to know: the scene, the last plan, the last run's metrics, what is loaded."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def stream() -> QoSProfile:
    """Plan steps: each must arrive, and a subscriber that is late by a whole plan still gets them all."""
    return QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)


def telemetry() -> QoSProfile:
    """Many small messages: a slow subscriber may lose some and never holds the publisher up."""
    return QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
