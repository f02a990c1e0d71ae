"""``python -m spec_planner``: the command-line program without its script."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
