"""``spec-planner bench WHAT``: measure, both sides in one run. One subject, one module."""

from __future__ import annotations

import argparse

from . import bench_drafters, bench_engines, bench_planner

HELP = "Measure plans, times, drafters and engines, plain against speculative, in one run."
EXAMPLES = """\
`spec-planner bench WHAT --help` says what WHAT measures.

examples:
  spec-planner bench planner --quick
  spec-planner bench drafters --quick
  spec-planner bench engines --quick
"""
SUBJECTS = {"planner": bench_planner, "drafters": bench_drafters, "engines": bench_engines}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subjects = parser.add_subparsers(title="what to measure", dest="what", metavar="WHAT", required=True)
    for name, module in SUBJECTS.items():
        subject = subjects.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subject)


def run(options: argparse.Namespace) -> int:
    """What the subject's ``run`` returns and raises."""
    return SUBJECTS[options.what].run(options)
