"""Expert plans: sub-goal by sub-goal, each on the few things that matter, each abstract problem planned only once.

"Put the cup in the cupboard" and "put the book in the drawer" are one problem once the names are taken out. It is
planned once, and the names are put back: thousands of tasks cost a few hundred calls of the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..language.plan import Condition, Fact, Scene, SkillSet
from ..world.execution import read_step
from ..world.state import State, WorldError, apply, reached
from .expert import Problem, Step, solve, value_parameters

MAX_STEPS = 14


class Expert:
    """Plans in the order sub-goals are given. Not thread-safe; one per skill set keeps what it has planned."""

    def __init__(self, skills: SkillSet) -> None:
        self.skills = skills
        self._solved: dict[Problem, tuple[Step, ...] | None] = {}
        # Only what some step needs decides a plan.
        self._decisive = {condition.fact.predicate for skill in skills for condition in skill.preconditions}

    @property
    def problems(self) -> int:
        """How many abstract problems were planned."""
        return len(self._solved)

    def plan(
        self, scene: Scene, state: State, stages: Sequence[Condition | str], constants: Mapping[str, str]
    ) -> tuple[tuple[str, ...], State] | None:
        """Plan lines that reach the stages one after the other, and the state they end in.

        Args:
            stages: conditions to reach one after the other; a plan line among them is a step to take then.
            constants: value of each parameter that is a number or a choice and follows from no condition.

        Returns:
            None where a stage cannot be reached, or the plan is longer than ``MAX_STEPS``.
        """
        lines: list[str] = []
        states = [state]
        for stage in stages:
            if isinstance(stage, str):
                lines.append(stage)
                states.append(apply(states[-1], read_step(stage, self.skills), self.skills, scene))
                continue
            if reached(states[-1], (stage,)):
                continue
            steps = self._steps(scene, states[-1], stage, constants)
            if steps is None:
                return None
            for skill, values in steps:
                line = f"{skill}({', '.join(values)})"
                try:
                    states.append(apply(states[-1], read_step(line, self.skills), self.skills, scene))
                except WorldError:
                    return None
                lines.append(line)
                if states[-1] in states[:-1]:  # back where it was: what lies between was for nothing
                    first = states.index(states[-1])
                    del states[first + 1 :], lines[first:]
            if not reached(states[-1], (stage,)):
                return None
        return (tuple(lines), states[-1]) if len(lines) <= MAX_STEPS else None

    def _steps(
        self, scene: Scene, state: State, goal: Condition, constants: Mapping[str, str]
    ) -> tuple[Step, ...] | None:
        kinds = {thing.name: thing.kind for thing in scene.things}
        facts = _relevant(state, goal, kinds, self._decisive | {goal.fact.predicate})
        short: dict[str, str] = {}

        def rename(name: str) -> str:
            return short.setdefault(name, f"{'t' if name in kinds else 'c'}{len(short)}")

        abstract_goal = Condition(Fact(goal.fact.predicate, tuple(map(rename, goal.fact.arguments))), goal.holds)
        abstract = tuple(Fact(fact.predicate, tuple(map(rename, fact.arguments))) for fact in facts)
        values: dict[str, list[str]] = {}
        for fact, begun in [(goal.fact, True), *((fact, False) for fact in facts)]:
            for index, argument in enumerate(fact.arguments):
                if argument not in kinds:
                    values.setdefault(rename(argument), []).extend(value_parameters(fact, index, self.skills, begun))
        taken = {parameter for parameters in values.values() for parameter in parameters}
        for parameter, value in constants.items():
            if parameter not in taken:
                values.setdefault(rename(value), []).append(parameter)
        problem = Problem(
            tuple((new, kinds[old]) for old, new in short.items() if old in kinds),
            tuple((name, tuple(dict.fromkeys(parameters))) for name, parameters in values.items()),
            tuple(sorted(abstract, key=str)),
            abstract_goal,
        )
        if problem not in self._solved:
            self._solved[problem] = solve(problem, self.skills)
        found = self._solved[problem]
        names = {new: old for old, new in short.items()}
        return found and tuple((skill, tuple(names[value] for value in values)) for skill, values in found)


def _relevant(state: State, goal: Condition, kinds: Mapping[str, str], decisive: set[str]) -> list[Fact]:
    """Facts about the goal's things, where they are, the robot and what it holds; in an order that hides the names."""
    wanted = [name for name in goal.fact.arguments if name in kinds]
    robot = sorted((fact for fact in state if fact.predicate in ("robot_at", "holding")), key=lambda f: f.predicate)
    wanted += [name for fact in robot for name in fact.arguments if name in kinds]
    for name in list(wanted):
        wanted += [fact.arguments[1] for fact in state if fact.predicate == "at" and fact.arguments[0] == name]
    order = {name: rank for rank, name in reversed(list(enumerate(wanted)))}

    def rank(fact: Fact) -> tuple[object, ...]:
        return (fact.predicate, [order.get(argument, len(order)) for argument in fact.arguments])

    kept = [
        fact
        for fact in state
        if fact.predicate in decisive and all(a in order or a not in kinds for a in fact.arguments)
    ]
    # Facts about the robot first: which of them hold decides most.
    return sorted(kept, key=lambda fact: (len(fact.arguments) > 0 and fact.arguments[0] in kinds, rank(fact)))
