"""Write ``config/tasks/behavior.jsonl``: household activities read from the BDDL definitions of BEHAVIOR-1K.

    pip install --no-deps bddl && python tools/extract_behavior.py PATH/TO/bddl

Run once, by hand; the data file is part of the repository and the package ``bddl`` is not needed to use it. Of a
goal, the parts are kept that the household skills can bring about: where things are, what is open, on or clean.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Expression = Any  # a word, or a list of expressions

OUTPUT = Path(__file__).resolve().parents[1] / "config/tasks/behavior.jsonl"
PUTS = ("inside", "ontop", "nextto", "touching", "overlaid", "draped")  # (predicate thing place)
MAX_OF_A_SORT = 2  # candle 1, candle 2
MAX_GOALS = 6

NAMES = dict(
    line.split(": ")
    for line in (Path(__file__).parent / "behavior_names.txt").read_text(encoding="utf-8").splitlines()[1:]
)
NOT_THINGS = re.compile(  # substances, fixtures of the simulator, and what a person would not ask a robot for
    r"^(agent|water|stain|dust|dirt|floor|wall|ceiling|.*__(diced|cooked)__.*|(diced|cooked|melted|half|raw|broken)__.*"
    r"|.*_(leg|side|back|top)|.*wall_nail|fecal_matter|.*particle.*|cigarette|mousetrap|pistol|revolver|.*incision"
    r"|wood_pipe|weed|sod|turf|snow|mud|sand|debris|rust|mold|mildew|light_bulb|bag_of_mulch|address|alarm|booth)$"
)
DIRT = re.compile(
    r"stain|dust|dirt|mud|mold|mildew|rust|tarnish|grease|spill|crumb|lint|ink|sand|debris|soot|pollen|salt|gum|wax|marker"
    r"|liquid|juice|milk|water"
)


def read(text: str) -> list[Expression]:
    """S-expressions → nested lists. ``;`` starts a comment."""
    stack: list[list[Expression]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text)):
        if token == "(":
            stack.append([])
        elif token == ")":
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    return stack[0]


@dataclass
class Problem:
    """One definition: instances by synset, where each begins, and the goal."""

    activity: str
    instances: dict[str, list[str]] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)  # thing → what it is in or on
    room: dict[str, str] = field(default_factory=dict)
    on: set[str] = field(default_factory=set)
    dirty: set[str] = field(default_factory=set)
    goal: list[Expression] = field(default_factory=list)


def load(path: Path) -> Problem:
    problem = Problem(path.parent.name)
    for section in read(path.read_text(encoding="utf-8"))[0][1:]:
        if section[0] == ":objects":
            _add_objects(problem, section[1:])
        elif section[0] == ":init":
            for fact in section[1:]:
                _add_fact(problem, fact)
        elif section[0] == ":goal":
            problem.goal = section[1:]
    return problem


def _add_objects(problem: Problem, words: list[Expression]) -> None:
    names: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "-":
            problem.instances.setdefault(words.pop(0), []).extend(names)
            names = []
        else:
            names.append(word)


def _add_fact(problem: Problem, fact: Expression) -> None:
    predicate, *arguments = fact
    if predicate in PUTS:
        problem.inside.setdefault(arguments[0], arguments[1])
    elif predicate == "inroom":
        problem.room[arguments[0]] = arguments[1].replace("_", " ")
    elif predicate == "toggled_on":
        problem.on.add(arguments[0])
    elif predicate == "covered":
        problem.dirty.add(arguments[0])
    elif predicate == "future":
        for group in problem.instances.values():
            if arguments[0] in group:
                group.remove(arguments[0])


def goals(problem: Problem, expression: Expression, turn: int = 0) -> Iterator[tuple[str, ...]]:
    """Ground (predicate, arguments) of the expressible parts: at, open, closed, on, off, clean.

    ``turn`` deals the choices of an ``exists`` out one by one.
    """
    head, *rest = expression
    if head == "and":
        for part in rest:
            yield from goals(problem, part, turn)
    elif head == "or":
        yield from next(filter(None, (tuple(goals(problem, part, turn)) for part in rest)), ())
    elif head in ("forall", "exists", "forn"):
        number = int(rest.pop(0)[0]) if head == "forn" else MAX_OF_A_SORT
        (variable, _, kind), body = rest
        found = problem.instances.get(kind, [])
        if head == "exists":
            found = found[turn % len(found) :][:1] if found else []
        for index, instance in enumerate(found[:number]):
            yield from goals(problem, _bind(body, variable, instance), index if head != "exists" else turn)
    elif head == "forpairs":
        (first, _, kind), (second, _, other), body = rest
        pairs = zip(problem.instances.get(kind, []), problem.instances.get(other, []), strict=False)
        for index, (one, two) in enumerate(list(pairs)[:MAX_OF_A_SORT]):
            yield from goals(problem, _bind(_bind(body, first, one), second, two), index)
    elif head == "not" and rest[0][0] in ("open", "toggled_on", "covered"):
        predicate, thing, *what = (str(word).lstrip("?") for word in rest[0])
        if predicate == "covered" and not DIRT.search(what[0].split(".")[0]):
            return
        yield ({"open": "closed", "toggled_on": "off", "covered": "clean"}[predicate], thing)
    elif head in PUTS:
        yield ("at", *(word.lstrip("?") for word in rest))
    elif head in ("open", "toggled_on"):
        yield ({"open": "open", "toggled_on": "on"}[head], rest[0].lstrip("?"))


def _bind(expression: Expression, variable: str, value: str) -> Expression:
    if isinstance(expression, list):
        return [_bind(part, variable, value) for part in expression]
    return value if expression in (variable, variable.lstrip("?")) else expression


class Namer:
    """Readable names, unique in one problem: the room tells two cabinets apart, numbers tell two candles apart."""

    def __init__(self, problem: Problem, used: list[str]) -> None:
        self._names: dict[str, str] = {}
        groups: dict[str, list[str]] = {}
        for thing in used:
            groups.setdefault(word_for(thing), []).append(thing)
        for word, things in groups.items():
            rooms = [problem.room.get(thing, "") for thing in things]
            rooms = [ROOMS.get(room, room) for room in rooms]
            floor = word in ("floor", "lawn")
            if (floor or len(things) > 1) and all(rooms) and len(set(rooms)) == len(things):
                self._names |= {t: _floor(word, r) for t, r in zip(things, rooms, strict=True)}
            elif len(things) > 1:
                self._names |= {thing: f"{word} {i}" for i, thing in enumerate(things, 1)}
            else:
                self._names[things[0]] = word

    def __getitem__(self, thing: str) -> str:
        return self._names[thing]


def _floor(word: str, room: str) -> str:
    return word if word == "lawn" else room if room == "garden" and word == "floor" else f"{room} {word}"


ROOMS = {"childs room": "nursery", "private office": "office", "corridor": "hall"}


def word_for(thing: str) -> str:
    synset = re.sub(r"_\d+$", "", thing)
    lemma = synset.split(".")[0]
    plain = lemma.removeprefix("pottable__").replace("__of__", " of ").replace("__", " ").replace("_", " ")
    return NAMES.get(synset) or NAMES.get(lemma) or plain


def lemma_of(thing: str) -> str:
    return thing.split(".")[0]


class Kinds:
    """What BEHAVIOR knows can be opened or switched."""

    def __init__(self, package: Path) -> None:
        table = json.loads((package / "generated_data/properties_to_synsets.json").read_text(encoding="utf-8"))
        self._openable, self._toggleable = set(table["openable"]), set(table["toggleable"])

    def of(self, thing: str) -> str:
        synset = re.sub(r"_\d+$", "", thing)
        word = lemma_of(thing)
        opens = synset in self._openable and word not in ("laptop", "blender", "backpack", "carton", "recycling_bin")
        toggles = synset in self._toggleable and word not in ("sink", "opening")
        return "appliance" if opens and toggles else "container" if opens else "device" if toggles else "surface"


def activity_of(problem: Problem, kinds: Kinds) -> dict[str, object] | None:
    """The problem as one line of the data file; None where nothing sensible is left of its goal."""
    found: list[tuple[str, ...]] = []
    for part in problem.goal:
        found += [goal for goal in goals(problem, part) if goal not in found]
    moves = {goal[1]: goal[2] for goal in found if goal[0] == "at"}
    kept: list[tuple[str, ...]] = []
    for goal in found:
        if goal[0] == "at":
            target = _place_for(goal[2], problem, moves)
            thing = lemma_of(goal[1])
            if target is None or NOT_THINGS.match(thing) or HEAVY.match(thing) or goal[1] in moves.values():
                continue
            if ODD_PLACES.match(lemma_of(target)):
                continue
            start = problem.inside.get(goal[1])
            if start is None or start == target or _twice(kept, goal[1]) or ODD_PLACES.match(lemma_of(start)):
                continue
            goal = ("at", goal[1], target)
        elif NOT_THINGS.match(lemma_of(goal[1])) and lemma_of(goal[1]) not in ("floor", "wall"):
            continue
        if goal[0] == "off" and goal[1] not in problem.on:
            continue
        if goal not in kept:
            kept.append(goal)
    kept = _few_of_a_sort(kept)[:MAX_GOALS]
    return _line(problem, kept, kinds) if kept else None


def _place_for(target: str, problem: Problem, moves: dict[str, str]) -> str | None:
    """The place meant by being in, on or next to ``target``: itself, or where that small thing will be."""
    small = ("plate", "tablefork", "table_knife", "bowl", "mug", "book", "candle", "napkin", "place_mat", "teacup")
    seen = set()
    while lemma_of(target) in small or target in moves:
        onward = moves.get(target) or problem.inside.get(target)
        if onward is None or onward in seen:
            return None
        seen.add(onward)
        target = onward
    if lemma_of(target) == "agent" or re.match(r".*__.*", lemma_of(target)):
        return None
    return target


HEAVY = re.compile(  # nothing a robot carries
    r"^(hot_tub|pool_table|gravestone|pickup|boat|motorcycle|radiator|mattress|air_conditioner|bathtub|kayak|piano"
    r"|sports_equipment|paraffin|case|lining|popper|nickel|windshield|skiff|desk|bed|sofa|table|wall.*|bust|garment)$"
)
ODD_PLACES = re.compile(  # where nobody puts things
    r"^(newspaper|hamburger_bun|bap|steak|apple|cheddar|lamb|virginia_ham|duck|wax_paper|comic_book|clipboard|notebook"
    r"|mail|deer_antler|antler|skateboard_wheel|light_bulb|wall|booth|display_panel|hamburger|pole|calculator|staircase"
    r"|piano|shovel|empty_room|catalog|hanger)$"
)


def _twice(kept: list[tuple[str, ...]], thing: str) -> bool:
    return any(goal[0] == "at" and goal[1] == thing for goal in kept)


def _few_of_a_sort(kept: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """At most ``MAX_OF_A_SORT`` things of one synset; a thing that is a place of another goal stays a place."""
    seen: dict[str, set[str]] = {}
    result = []
    for goal in kept:
        sort = re.sub(r"_\d+$", "", goal[1])
        things = seen.setdefault(f"{goal[0]} {sort}", set())
        if goal[1] in things or len(things) < MAX_OF_A_SORT:
            things.add(goal[1])
            result.append(goal)
    return result


def _line(problem: Problem, kept: list[tuple[str, ...]], kinds: Kinds) -> dict[str, object] | None:
    movers = [goal[1] for goal in kept if goal[0] == "at"]
    places = [goal[2] for goal in kept if goal[0] == "at"]
    starts: dict[str, str] = {}
    cleaned = [goal[1] for goal in kept if goal[0] == "clean"]
    for thing in dict.fromkeys(movers + [c for c in cleaned if c not in places]):
        start = problem.inside.get(thing)
        while start is not None and (start in movers or NOT_A_PLACE.match(lemma_of(start))):
            start = problem.inside.get(start)  # a cupcake on a plate that moves begins where the plate does
        if start is not None and not (thing in cleaned and thing in problem.room):
            starts[thing] = start
        elif thing in movers:
            return None
    places += [start for start in starts.values()]
    places += [goal[1] for goal in kept if goal[0] != "at" and goal[1] not in starts]
    places = [place for place in dict.fromkeys(places) if place not in starts]
    if any(start not in places for start in starts.values()):
        return None
    name = Namer(problem, [*starts, *places])
    goal = []
    for predicate, *arguments in kept:
        if predicate == "at" and (arguments[1] not in places or starts[arguments[0]] == arguments[1]):
            continue
        words = ", ".join(name[argument] for argument in arguments)
        text = {"open": "not closed", "off": "not on", "clean": "not dirty"}.get(predicate, predicate)
        if f"{text}({words})" not in goal:
            goal.append(f"{text}({words})")
    if not goal:
        return None
    dirty = {g[1] for g in kept if g[0] == "clean"}
    on = {g[1] for g in kept if g[0] == "off"}
    switched = {g[1] for g in kept if g[0] in ("on", "off")}
    opened = {g[1] for g in kept if g[0] in ("open", "closed")}
    line: dict[str, object] = {"activity": problem.activity}
    line["objects"] = [{"name": name[t], "at": name[s], **({"is": ["dirty"]} if t in dirty else {})}
                       for t, s in starts.items()]  # fmt: skip
    line["places"] = []
    for place in places:
        kind = kinds.of(place)
        if place in opened:
            kind = "appliance" if kind in ("device", "appliance") else "container"
        if place in switched:
            kind = "appliance" if kind in ("container", "appliance") else "device"
        state = [word for word, things in (("dirty", dirty), ("on", on)) if place in things]
        line["places"].append({"name": name[place], "kind": kind, **({"is": state} if state else {})})
    line["goal"] = goal
    return line


NOT_A_PLACE = re.compile(r"^(plate|platter|chopping_board|place_mat|tray|book|agent|.*_bottle)$")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="the folder bddl, as pip unpacked it")
    package = parser.parse_args().package
    kinds = Kinds(package)
    lines = []
    for path in sorted(package.glob("activity_definitions/*/problem0.bddl")):
        try:
            activity = activity_of(load(path), kinds)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            print(f"left out {path.parent.name}: {type(error).__name__} {error}", file=sys.stderr)
            continue
        if activity:
            lines.append(json.dumps(activity, ensure_ascii=False))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} activities, {OUTPUT.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
