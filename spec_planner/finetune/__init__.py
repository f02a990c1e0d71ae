"""Low-rank fine-tuning of a target for this package's prompt; see ``spec-planner finetune``."""
