# Two commands matter: `make demo` and `make test`. Both first bring .venv up to date (tools/setup_env.py), which takes
# minutes once and about a second afterwards.
PYTHON ?= python3
ARGS ?=
# Passed on in the environment, so that quotes and dollar signs in an instruction reach the demo unchanged.
export SPEC_PLANNER_DEMO_INSTRUCTION := $(value INSTRUCTION)
export SPEC_PLANNER_DEMO_DRAFTER := $(value DRAFTER)
ifdef SCENE
export SPEC_PLANNER_DEMO_SCENE := $(value SCENE)
endif
# make would expand these on their way into the environment, and run what $(shell ...) they hold.
unexport INSTRUCTION DRAFTER SCENE

VENV := $(CURDIR)/.venv
SETUP := $(PYTHON) tools/setup_env.py
# The environment of this repository only: a ROS sourced in the calling shell must not mix with the one in .venv, and
# tests talk to this machine only.
IN_VENV := env -u PYTHONPATH -u PYTHONHOME -u _ROS_WHEELS_BOOTSTRAP_COMPLETE PATH="$(VENV)/bin:$$PATH" \
	AMENT_PREFIX_PATH="$(VENV)" ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST

.PHONY: help demo test lint setup clean python-present
.DEFAULT_GOAL := help

help:
	@echo 'make demo    plan one instruction with a real model over ROS 2, plain and speculative, and compare'
	@echo '             make demo INSTRUCTION="put the cup in the sink" DRAFTER=lookup SCENE=file.yaml'
	@echo 'make test    run the tests;  make test ARGS="tests/decoding -k tree"'
	@echo 'make lint    ruff, and mypy on the decoding core'
	@echo 'make setup   only bring .venv up to date'
	@echo 'make clean   remove .venv and everything built'

python-present:
	@command -v $(PYTHON) >/dev/null || { echo 'make: $(PYTHON) is not on the PATH: install Python 3.11, or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; }

setup: python-present
	@$(SETUP)

demo: setup
	@exec $(IN_VENV) python -m spec_planner.demo

test: setup
	@exec $(IN_VENV) python -m pytest $(ARGS)

lint: python-present
	@$(SETUP) --until packages
	@$(IN_VENV) python tools/lock.py --check
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) mypy

clean: python-present
	@$(SETUP) --clean
