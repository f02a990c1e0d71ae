"""``spec-planner VERB …``: finds the verb, and turns whatever goes wrong into one sentence and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__

# One verb, one module with ``HELP``, ``EXAMPLES``, ``add_arguments(parser)`` and ``run(options) -> int``. Importing it
# must be cheap: libraries are imported when the verb runs.
VERBS = {
    "plan": "plan",
    "certify": "certify",
    "doctor": "doctor",
    "bench": "bench",
    "finetune": "finetune",
    "tasks": "tasks",
    "train": "train",
    "export": "export",
    "build": "build",
}
EXIT_FAILURE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


class CommandError(Exception):
    """A verb failed for a reason that is not bad input; the message is one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 success, 1 failure, 2 bad input, 130 interrupted. Errors are one sentence on standard error."""
    options = make_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at exit
        return EXIT_FAILURE
    except ImportError as error:
        missing = error.name or str(error)
        return _fail(f"cannot import {missing}: `spec-planner doctor` says how to get it", EXIT_FAILURE)
    except ValueError as error:  # the library's way of naming what the user must change
        return _fail(str(error), EXIT_BAD_INPUT)
    except (CommandError, OSError, RuntimeError, ArithmeticError) as error:
        return _fail(str(error), EXIT_FAILURE)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spec-planner", description="On-board language planning with exact speculative decoding."
    )
    parser.add_argument("--version", action="version", version=f"spec-planner {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for name, module_name in VERBS.items():
        module = importlib.import_module(f".{module_name}", __package__)
        verb = verbs.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def _fail(sentence: str, code: int) -> int:
    print(f"spec-planner: {' '.join(sentence.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
