"""One process, or several under ``torchrun`` (one per GPU) that share the work of a run."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """The processes of a run. Use as a context manager, so that the others do not wait for one that failed."""

    def __init__(self, device: torch.device, patience: timedelta = timedelta(minutes=10)) -> None:  # noqa: B008
        """``device``: of the run; ``patience``: how long a process waits for the others before it gives up."""
        self._device, self._patience = device, patience
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    def __enter__(self) -> Group:
        if self.size > 1:
            if self._device.type == "cuda":
                torch.cuda.set_device(self.local_rank)
            # The backend follows the device of what is sent: a run on the CPU of a machine with a GPU needs gloo.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=self._patience)
        return self

    def __exit__(self, *error: object) -> None:
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that reports and writes."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """In place, over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def leader_says(self, values: list[float], device: torch.device) -> list[float]:
        """The leader's ``values`` in every process."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.broadcast(tensor, 0)
        return tensor.tolist()

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum_(torch.zeros(1))  # not a barrier, which would choose the device itself
