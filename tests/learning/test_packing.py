"""A pack must learn what its sequences, one by one, would."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from spec_planner.finetune.adapted_model import AdaptedModel  # noqa: E402
from spec_planner.learning.forest_attention import Forest, forest_attention, fused_attention  # noqa: E402
from spec_planner.learning.packing import Example, fill, make_pack  # noqa: E402
from tests.finetune.corpora import random_examples  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def model(request, tmp_path_factory):
    directory = make_tiny_model(tmp_path_factory.mktemp(request.param), request.param)
    model = AdaptedModel(directory, 4, 8, 0, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        for parameter in model.parameters.values():
            parameter.normal_(0, 0.1)  # B is zero in a fresh adapter, which would hide A's gradient
    return model


def learn(model, packs):
    for parameter in model.parameters.values():
        parameter.grad = None
    total = 0.0
    for pack in packs:
        loss = model.loss_sum(pack)
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad.clone() for name, parameter in model.parameters.items()}


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_are_those_of_the_separate_sequences(model, seed):
    examples = random_examples(seed)
    pack = make_pack(examples)
    assert len(pack) < 0.6 * sum(map(len, examples))
    loss, gradients = learn(model, [pack])
    expected_loss, expected = learn(model, [make_pack([example]) for example in examples])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


def test_one_sequence_agrees_with_transformers_and_peft_themselves(model):
    """Own attention, norms and LoRA layers against the libraries' in plain form."""
    example = random_examples(1)[0]
    loss, gradients = learn(model, [make_pack([example])])
    merged = {}
    for name, module in model.model.named_modules():
        if hasattr(module, "lora_A"):
            low = module.lora_B["default"].weight @ module.lora_A["default"].weight * module.scaling["default"]
            merged[name.removeprefix("base_model.model.") + ".weight"] = low
    import transformers

    plain = transformers.AutoModelForCausalLM.from_config(model.model.config, attn_implementation="eager").float()
    plain.config._attn_implementation = "eager"
    weights = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): tensor
        for name, tensor in model.model.state_dict().items()
        if "lora_" not in name
    }
    plain.load_state_dict(weights)
    updated = {name: plain.get_parameter(name) + low for name, low in merged.items()}
    ids = torch.from_numpy(example.ids.astype(np.int64))[None]
    logits = torch.func.functional_call(plain, updated, (ids,)).logits[0, example.answer - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, ids[0, example.answer :], reduction="sum")
    assert loss == pytest.approx(float(expected.detach()), rel=1e-4)
    names = list(model.parameters)
    for name, gradient in zip(names, torch.autograd.grad(expected, [model.parameters[n] for n in names]), strict=True):
        torch.testing.assert_close(gradients[name], gradient, rtol=2e-3, atol=1e-4 * float(gradient.abs().max()))


def test_the_fused_attention_of_gpus_is_the_same():
    pack = make_pack(random_examples(0))
    forest = Forest(pack, torch.device("cpu"))
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(pack), 8, requires_grad=True) for heads in (6, 2, 2))
    upstream = torch.randn(1, len(pack), 6, 8)
    out, _ = forest_attention(None, query, key, value, None, forest=forest)
    gradients = torch.autograd.grad(out, (query, key, value), upstream)
    wide = [states.repeat_interleave(3, 1) for states in (key, value)]
    expected = fused_attention(query, *wide, forest, 8**-0.5).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (query, key, value), upstream))


def test_every_answer_token_is_asked_for_by_its_sequences():
    examples = random_examples(2)
    pack = make_pack(examples)
    assert pack.num_answer_tokens == sum(len(example) - example.answer for example in examples)
    assert {asker for askers in pack.askers for asker in askers} == set(range(len(examples)))
    ends = [node.end for node in pack.nodes]
    assert [node.start for node in pack.nodes] == [0, *ends[:-1]] and ends[-1] == len(pack)


def test_sequences_are_ordered_by_their_ids():
    examples = [Example(np.array(ids, np.int32), 0) for ids in ([70000, 1], [2], [2, 0], [300, 5], [1, 99999])]
    by_key = [example.ids.tolist() for example in sorted(examples, key=lambda example: example.order)]
    assert by_key == sorted(example.ids.tolist() for example in examples)


@pytest.mark.parametrize("seed", range(3))
def test_every_sequence_is_found_again_by_its_end(seed):
    examples = random_examples(seed)
    pack, found = make_pack(examples), []
    for last, answer in pack.ends:
        spans = (*pack.nodes[last].ancestors, (pack.nodes[last].start, pack.nodes[last].end))
        rows = [row for span in spans for row in range(*span)]
        assert pack.positions[rows].tolist() == list(range(len(rows)))
        found.append((pack.ids[rows].tolist(), answer))
    assert sorted(found) == sorted((example.ids.tolist(), example.answer) for example in examples)


def test_packs_are_filled_in_order_and_not_beyond_their_capacity():
    prefix = list(range(100, 150))
    examples = [Example(np.array([*prefix, i, *range(i, i + 20)], np.int32), 60) for i in range(10, 40)]
    chunks = [[i, i + 1] for i in range(0, 30, 2)]
    packs = list(fill(examples, chunks, 200))
    assert [i for pack in packs for i in pack] == list(range(30))
    sizes = [len(make_pack([examples[i] for i in pack])) for pack in packs]
    assert max(sizes) <= 200 and min(sizes[:-1]) > 200 - 42
    assert list(fill(examples, [[0, 1, 2]], 10)) == [[0, 1, 2]]


def test_distillation_is_zero_for_a_fresh_adapter_and_positive_for_another(tmp_path):
    fresh = AdaptedModel(make_tiny_model(tmp_path), 4, 8, 0, torch.device("cpu"), torch.float32)
    pack = make_pack(random_examples(0), distil=True)
    assert float(fresh.loss_sum(pack).detach()) == pytest.approx(0, abs=1e-3)
    with torch.no_grad():
        for parameter in fresh.parameters.values():
            parameter.add_(0.1)
    loss = fresh.loss_sum(pack)
    loss.backward()
    assert float(loss.detach()) > 0.1 and all(p.grad.abs().max() > 0 for p in fresh.parameters.values())
