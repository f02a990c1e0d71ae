"""Start the planner node and, with autostart, bring it to active."""

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.conditions import IfCondition
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare
from lifecycle_msgs.msg import Transition

SETTINGS = ("model", "drafter", "engine", "precision", "engine_file", "scene_file")  # of the planner


def generate_launch_description() -> LaunchDescription:
    default_params = PathJoinSubstitution([FindPackageShare("spec_planner"), "config", "planner.yaml"])
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "model",
                default_value="",
                description="Model directory, 'default' or 'default-base'; empty leaves it to params_file.",
            ),
            DeclareLaunchArgument(
                "drafter",
                default_value="",
                description="auto, none, lookup, draft-model; medusa, mtp, mtp-parallel, eagle1, eagle2, eagle3, "
                "dflash or dflash2, where it comes with the package for the model; a checkpoint directory; lookup+ "
                "before a drafter; empty leaves it to params_file.",
            ),
            DeclareLaunchArgument(
                "engine",
                default_value="",
                description="auto, torch, onnx, openvino or tensorrt; auto tries them once and remembers the fastest; "
                "empty leaves it to params_file.",
            ),
            DeclareLaunchArgument(
                "precision",
                default_value="",
                description="float32, bfloat16, float16, int8, int4, fp8 or nvfp4, as far as the engine has it; empty "
                "leaves it to params_file.",
            ),
            DeclareLaunchArgument(
                "engine_file",
                default_value="",
                description="For engine tensorrt: the directory that spec-planner build wrote; empty leaves it to "
                "params_file.",
            ),
            DeclareLaunchArgument(
                "scene_file",
                default_value="",
                description="YAML scene for goals that bring none; empty leaves it to params_file.",
            ),
            DeclareLaunchArgument(
                "params_file",
                default_value=default_params,
                description=f"YAML file of parameters; {', '.join(SETTINGS)}, if given, take precedence.",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="Namespace of the node; its topics move along."
            ),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                description="true or false: configure and activate the node as soon as it runs.",
            ),
            DeclareLaunchArgument(
                "use_sim_time",
                default_value="false",
                description="true or false: stamp messages with the time of /clock; deadlines stay on real time.",
            ),
            DeclareLaunchArgument(
                "log_level",
                default_value="info",
                description="Least severe log messages to show: debug, info, warn, error or fatal.",
            ),
            OpaqueFunction(function=planner),
        ]
    )


def planner(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The node and what starts it; a function, because an empty argument must not become a parameter."""
    given = {name: LaunchConfiguration(name).perform(context) for name in SETTINGS}
    node = LifecycleNode(
        package="spec_planner",
        executable="planner_node",
        name="planner",
        namespace=LaunchConfiguration("namespace"),
        parameters=[
            LaunchConfiguration("params_file"),
            {name: ParameterValue(value, value_type=str) for name, value in given.items() if value},
            {"use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)},
        ],
        ros_arguments=["--log-level", LaunchConfiguration("log_level")],
        output="screen",
    )
    autostart = IfCondition(LaunchConfiguration("autostart"))
    configure = EmitEvent(event=transition(node, Transition.TRANSITION_CONFIGURE), condition=autostart)
    # Only the way up: a node that an operator deactivates stays inactive.
    activate_when_configured = RegisterEventHandler(
        OnStateTransition(
            target_lifecycle_node=node,
            start_state="configuring",
            goal_state="inactive",
            entities=[EmitEvent(event=transition(node, Transition.TRANSITION_ACTIVATE))],
        ),
        condition=autostart,
    )
    return [activate_when_configured, node, configure]


def transition(node: LifecycleNode, transition_id: int) -> ChangeState:
    return ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition_id)
