"""EAGLE-3 learns (2503.01840) by a training-time test: it runs on its own outputs in training as it will in drafting.

    step 0   base row of the anchor x(t)    fused true features                → the law of x(t + 1)
    step s   chain row of x(t + s)          what step s − 1 put out            → the law of x(t + s + 1)

Tokens are given, features are not asked for, and gradients flow through all steps; which rows see which: ``rows.py``.
The draft vocabulary is what the target says most. A step whose token lies outside of it teaches nothing and counts as
wrong. (The paper asks whether the target's likeliest token lies outside. Answers are the target's own, so the token it
did write says nearly the same, and spares the full head.)

At first it is the target's last layer run on the highest of its features, and does not see the others or the token but
through attention. With ``fc_norm``, features come in at size 1, so what the layer adds is made smaller alike; and where
a dimension of the target's stream is far larger than others (``stream_sizes.py``), the norm's weight brings it down
and ``fc`` up again, since Adam would else follow it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..nets.eagle3_net import Eagle3Net
from .batch import Batch, Loss, TargetWeights
from .common import frequent_tokens, soft_cross_entropy, write_checkpoint
from .rows import (
    Windows,
    check_feature_layers,
    check_options,
    drafter_config,
    head_logits,
    head_rows,
    roll_out,
    take_over,
)
from .stream_sizes import stream_sizes
from .target_layers import layer_tensors


@dataclass(frozen=True)
class Eagle3Options:
    """Attributes:
    depth: steps of the training-time test, and longest chain it is judged at.
    draft_vocabulary: tokens it can say; 0 takes all, with the target's own head.
    decay: weight of each step against the step before.
    feature_layers: hidden states it reads, Hugging Face indices; empty takes a low, a middle and a high one.
    fc_norm, norm_output: the norms of EAGLE-3.1 (2605.09992).
    intermediate: inner size of the feed-forward block; 0 takes the target's.
    """

    depth: int = 7
    draft_vocabulary: int = 2048
    decay: float = 0.8
    feature_layers: tuple[int, ...] = ()
    fc_norm: bool = True
    norm_output: bool = True
    intermediate: int = 0


class Eagle3Trainee:
    """See ``trainee.Trainee``."""

    Options = Eagle3Options

    def __init__(self, target: TargetWeights, options: Eagle3Options) -> None:
        check_options(depth=options.depth)
        self._target, self._options, self.depth = target, options, options.depth
        layers = options.feature_layers or Eagle3Net.feature_layers({}, target.num_layers)
        self._read = check_feature_layers(layers, target.num_layers)
        self.feature_layers = tuple(sorted({*self._read, target.num_layers}))
        device, vocabulary = target.embedding.device, len(target.embedding)
        size = min(options.draft_vocabulary or vocabulary, vocabulary)
        self._kept = frequent_tokens(target.token_ranks, size).to(device)  # draft id → target id
        self._draft_ids = torch.full((vocabulary,), -1, device=device)  # and back; −1 where there is none
        self._draft_ids[self._kept] = torch.arange(size, device=device)
        self._config = drafter_config(target, options.intermediate) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "draft_vocab_size": size,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self._read],  # there: outputs of layers
                "use_aux_hidden_state": True,
            },
            "fc_norm": options.fc_norm,
            "norm_output": options.norm_output,
        }
        if options.feature_layers:  # for loaders that know the field of this place alone: hidden states, not outputs
            self._config["eagle_aux_hidden_state_layer_ids"] = list(self._read)
        self.net = Eagle3Net(self._config, ()).to(device)
        self.net.embedding, self.net.head = target.embedding, target.head
        self._start()

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        windows = Windows.of(batch.windows(self.depth))
        labels = self._draft_ids[windows.tokens(batch)[:, 1:]]
        weights = (windows.judged & (labels >= 0)) * windows.counts[:, None]
        weights = weights * self._options.decay ** torch.arange(self.depth, device=weights.device)
        spoken, place = windows.rows[:, :-1].clamp(min=0).unique(return_inverse=True)
        laws = head_logits(batch.features[self._target.num_layers][spoken], head_rows(self._target.head, self._kept))
        hidden = self.net.fuse(batch.stacked(self._read).to(self.net.fc.weight.dtype))
        total, right = hidden.new_zeros(()), []
        for step, output in enumerate(roll_out(self.net, batch, hidden, windows.rows, self.depth)):
            logits = head_logits(self.net.before_head(output), self.net.head_weight)
            total = total + (soft_cross_entropy(logits, laws[place[:, step]]) * weights[:, step]).sum()
            right.append(logits.argmax(-1) == labels[:, step])
        judged = windows.judged[windows.places]
        return Loss(total, float(weights.sum()), torch.stack(right, dim=1)[windows.places], judged)

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        rename = {name: name.replace("layers.0.", "midlayer.") for name in self.net.state_dict()}
        extra = {}
        if self.net.lm_head is not None:
            offsets = self._kept - torch.arange(len(self._kept), device=self._kept.device)
            extra = {"d2t": offsets, "t2d": self._draft_ids >= 0}
        write_checkpoint(directory, self.net, self._config | {"spec_planner": dict(note)}, extra, rename)

    @torch.no_grad()
    def _start(self) -> None:
        """See the module; what is of no shape of the target's stays as drawn."""
        net, first, width = self.net, self.net.layers[0], self.net.hidden_size
        tensors = layer_tensors(self._target, self._target.num_layers - 1, self._options.intermediate)
        take_over(first, {name: t for name, t in tensors.items() if name != "input_layernorm.weight"})
        take_over(net.norm, {"weight": self._target.final_norm})
        if net.lm_head is not None:
            take_over(net.lm_head, {"weight": self._target.head[self._kept]})
        if "input_layernorm.weight" in tensors:
            take_over(first.hidden_norm, {"weight": tensors["input_layernorm.weight"]})
        # Queries and keys that the target norms are of any size before; here there is no such norm.
        for name in ("v",) if "self_attn.q_norm.weight" in tensors else ("q", "k", "v"):
            if f"self_attn.{name}_proj.weight" in tensors:
                half = getattr(first.self_attn, f"{name}_proj").weight[:, width:]  # the token's half stands before
                half.copy_(tensors[f"self_attn.{name}_proj.weight"])
        highest = max(range(len(self._read)), key=lambda i: self._read[i])
        net.fc.weight.zero_()
        blocks = net.fc.weight.view(width, len(self._read), width)
        if net.fc_norm is None:
            blocks[:, highest].copy_(torch.eye(width))
            return
        sizes = stream_sizes(self._target, self._read)  # [m, d]
        shares = sizes / sizes.square().mean(1, keepdim=True).sqrt()
        for norm, share in zip(net.fc_norm, shares, strict=True):
            norm.weight.copy_(1 / share.clamp(min=1))
        blocks[:, highest].copy_(torch.diag(shares[highest].clamp(min=1)))
        size = sizes[highest].square().mean().sqrt()
        first.self_attn.o_proj.weight.div_(size)
        first.mlp.down_proj.weight.div_(size)
