"""A target with a LoRA adapter to train: peft on transformers, with two parts made for packs and for bfloat16.

*Attention* follows a pack's forest (``forest_attention.py``). *LoRA layers and norms* compute in the dtype of the
frozen weights while the adapter itself stays float32; peft's own layers would convert activations to float32 and back.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import Tensor, nn

from ..learning.forest_attention import ATTENTION, Forest
from ..learning.packed_target import load_packed
from ..learning.packing import Pack
from ..quiet import quiet_transformers

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class AdaptedModel:
    """The model, its adapter's parameters, and the two losses."""

    def __init__(self, directory: Path, rank: int, alpha: int, seed: int, device: torch.device, dtype: torch.dtype):
        """Load ``directory`` and add a fresh adapter of rank ``rank``.

        Raises:
            ModelError: the directory holds no model of a supported family.
        """
        base = load_packed(directory, dtype)
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=list(LINEARS)
        )
        for module in base.modules():
            if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
                module.forward = functools.partial(_rms_norm, module)
        config._register_custom_module({nn.Linear: _LoraLinear})
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is going out of use
            self.model = peft.get_peft_model(base, config, autocast_adapter_dtype=True)
        self.model.to(device)
        self.device, self.dtype = device, dtype
        self._base, self._decoder = base, base.model
        self._head = base.get_output_embeddings()
        named = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        self.parameters: dict[str, nn.Parameter] = dict(sorted(named.items()))
        for parameter in self.parameters.values():
            parameter.data = parameter.data.float()

    @property
    def head(self) -> Tensor:
        """[vocabulary, d]; frozen, as is the embedding."""
        weight: Tensor = self._head.weight
        return weight

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self._base.get_input_embeddings().weight
        return weight

    def loss_sum(self, pack: Pack, hidden: Tensor | None = None) -> Tensor:
        """Sum over the pack's answer tokens (times their weights) of −log p, or of KL(base ‖ adapted) in nats.

        ``hidden``: the pack's ``hidden_states``, where they are known.
        """
        logits = self.answer_logits(pack, hidden).float()
        weights = torch.from_numpy(pack.weights).to(self.device)
        if not pack.distil:
            targets = torch.from_numpy(pack.targets).to(self.device)
            return (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
        with torch.no_grad(), self.without_adapter():
            law = F.log_softmax(self.answer_logits(pack).float(), dim=-1)
        divergence = F.kl_div(F.log_softmax(logits, dim=-1), law, reduction="none", log_target=True).sum(-1)
        return (divergence * weights).sum()

    def answer_logits(self, pack: Pack, hidden: Tensor | None = None) -> Tensor:
        """[answer tokens, vocabulary]; the head runs on these rows only."""
        if hidden is None:
            hidden = self.hidden_states(pack)
        return self._head(hidden[torch.from_numpy(pack.rows).to(self.device)])

    def hidden_states(self, pack: Pack) -> Tensor:
        """[rows, d], after the final norm: what the head reads."""
        hidden: Tensor = self._decoder(
            input_ids=torch.from_numpy(pack.ids)[None].to(self.device),
            position_ids=torch.from_numpy(pack.positions)[None].to(self.device),
            use_cache=False,
            forest=Forest(pack, self.device),
        ).last_hidden_state[0]
        return hidden

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        with self.model.disable_adapter():
            yield

    def sample(self, prompts: Sequence[Sequence[int]], length: int, temperature: float, seed: int) -> list[list[int]]:
        """What the base model, without adapter, answers to each prompt: up to ``length`` ids, the last one a stop."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        torch.manual_seed(seed)
        self._base.set_attn_implementation("sdpa")  # ours knows no padding
        try:
            with torch.no_grad(), self.without_adapter(), quiet_transformers():
                out = self._base.generate(
                    input_ids=ids.to(self.device),
                    attention_mask=mask.to(self.device),
                    max_new_tokens=length,
                    do_sample=True,
                    temperature=temperature,
                    top_k=0,
                )
        finally:
            self._base.set_attn_implementation(ATTENTION)
        stops = self._base.generation_config.eos_token_id
        stops = set(stops if isinstance(stops, list) else [stops])
        answers = []
        for row in out[:, longest:].tolist():
            end = next((index + 1 for index, token in enumerate(row) if token in stops), len(row))
            answers.append(row[:end])
        return answers

    def adapter_state(self) -> dict[str, Tensor]:
        """Names and tensors as in PEFT's ``adapter_model.safetensors``."""
        return dict(peft.get_peft_model_state_dict(self.model, save_embedding_layers=False))  # auto would ask the hub

    def adapter_config(self, base_name: str) -> peft.PeftConfig:
        config = self.model.peft_config["default"]
        config.base_model_name_or_path = base_name  # a name: not where the model lies on this machine
        config.inference_mode = True
        config.target_modules = set(LINEARS)
        return config


class _LoraLinear(PeftLinear):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = self.get_base_layer()
        if self.disable_adapters:
            return base(x)
        (name,) = self.active_adapters
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        return _LoraFunction.apply(x, base.weight, base.bias, a, b, self.scaling[name])


class _LoraFunction(torch.autograd.Function):
    """y = x Wᵀ + bias + scale · (x Aᵀ) Bᵀ with W frozen, everything in the dtype of x and W, A and B float32."""

    @staticmethod
    def forward(ctx, x, weight, bias, a, b, scale):  # noqa: ANN001, ANN205
        rows = x.reshape(-1, x.shape[-1])
        a_low, b_low = a.to(x.dtype), (b * scale).to(x.dtype)
        inner = rows @ a_low.T
        out = F.linear(rows, weight, bias)
        out.addmm_(inner, b_low.T)
        ctx.save_for_backward(rows, inner, weight, a_low, b_low)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        rows, inner, weight, a_low, b_low = ctx.saved_tensors
        grad_rows = grad.reshape(-1, grad.shape[-1])
        grad_inner = grad_rows @ b_low
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_rows @ weight).addmm_(grad_inner, a_low).view(*grad.shape[:-1], -1)
        grad_a = (grad_inner.T @ rows).float()
        grad_b = (grad_rows.T @ inner).float() * ctx.scale
        return grad_x, None, None, grad_a, grad_b, None


def _rms_norm(module: nn.Module, x: Tensor) -> Tensor:
    return _RmsNormFunction.apply(x, module.weight, module.variance_epsilon)


class _RmsNormFunction(torch.autograd.Function):
    """RMSNorm with a frozen weight: as transformers computes it, in half as many passes over memory."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):  # noqa: ANN001, ANN205
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        scale = square.div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normal = (x * scale).to(x.dtype)
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        normal, scale, weight = ctx.saved_tensors
        grad_normal = grad * weight
        along = (grad_normal * normal).mean(-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(grad_normal, normal, along.neg_().to(normal.dtype)).mul_(scale), None, None
