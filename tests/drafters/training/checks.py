"""What every trainee must keep to, whatever its method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from drafters.registry import load_drafter
from drafters.training.batch import Batch, Loss, Score, TargetWeights
from drafters.training.trainee import Trainee, make_trainee
from spec_planner.decoding.contracts import check_compatible

from .toy_target import (
    OTHERS,
    answered,
    drafted_right,
    learn,
    load_target,
    text_of,
    tokens_per_cycle,
    weights_of,
    write_target,
)


def judge(trainee: Trainee, batch: Batch) -> Loss:
    with torch.no_grad():
        return trainee.loss(batch)


def score(trainee: Trainee, batch: Batch) -> float:
    total = Score()
    total.add(judge(trainee, batch))
    return total.acceptance_length


def leading(loss: Loss) -> torch.Tensor:
    """bool [anchors, depth]: right, and all before it."""
    return (loss.right & loss.judged).long().cumprod(1).bool()


def only_what_it_asks_for(batch: Batch, trainee: Trainee) -> Batch:
    return replace(batch, features={layer: batch.features[layer] for layer in trainee.feature_layers})


def check_it_learns(tmp_path: Path, name: str, steps: int, rate: float, gain: float, scale: float = 0.15,
                    on_others: bool = True, **options: str) -> None:  # fmt: skip
    """A few dozen steps on some answers make longer drafts right, on others too; every parameter has a hand in it."""
    directory = write_target(tmp_path / "target", scale=scale)
    target, weights = load_target(directory), weights_of(directory)
    torch.manual_seed(1)
    trainee = make_trainee(name, weights, options)
    batch, others = (only_what_it_asks_for(b, trainee) for b in (answered(target), answered(target, OTHERS)))
    lent = {tensor: tensor.clone() for tensor in (weights.embedding, weights.head, weights.final_norm)}
    judged = others if on_others else batch
    before = score(trainee, judged)
    trainee.loss(batch, torch.Generator().manual_seed(0)).sum.backward()
    for parameter_name, parameter in trainee.net.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None and bool(parameter.grad.any()), parameter_name
    borrowed = {tensor.data_ptr() for tensor in lent}
    assert not borrowed & {parameter.data_ptr() for parameter in trainee.net.parameters()}
    learn(trainee, batch, steps, rate)
    assert all(tensor.grad is None and torch.equal(tensor, copy) for tensor, copy in lent.items())
    first, second = judge(trainee, batch), judge(trainee, batch)
    assert torch.equal(first.sum, second.sum) and torch.equal(first.right, second.right)
    assert first.right.shape == first.judged.shape == (len(batch.windows(trainee.depth)), trainee.depth)
    assert score(trainee, judged) > before + gain


def check_it_drafts_as_judged(
    tmp_path: Path, name: str, family: str, steps: int, rate: float, **options: str
) -> tuple[Trainee, TargetWeights]:
    """Stored and loaded, it is right behind every anchor exactly as deep as training said; and so in decoding."""
    directory = write_target(tmp_path / "target", family)
    target, weights = load_target(directory), weights_of(directory)
    torch.manual_seed(1)
    trainee = make_trainee(name, weights, options)
    batch = answered(target)
    learn(trainee, batch, steps, rate)
    with torch.no_grad():  # as stored: what is compared is where the rows stand, not how they are rounded
        for parameter in trainee.net.parameters():
            parameter.copy_(parameter.half())
    expected = leading(judge(trainee, batch))
    deepest = expected[:, -1].float().mean()
    assert 0.1 < deepest < 0.9, f"{deepest}: a shift would not show"
    (tmp_path / "drafter").mkdir()
    trainee.save(tmp_path / "drafter", {"made": "here"})
    drafter = load_drafter(tmp_path / "drafter", target, 1)
    check_compatible(target.info, drafter)
    found = drafted_right(target, drafter, batch, trainee.depth)
    assert torch.equal(found, expected)

    row = 0
    for number, path in enumerate(batch.paths):
        text, length = text_of(batch, path), len(path.rows) - path.answer
        if number % 2 == 0:  # the others begin with a token that the target did not choose itself
            predicted, anchor = [1], 0
            while anchor < length - 1:
                accepted = int(expected[row + anchor].sum())
                predicted.append(min(accepted + 1, length - 1 - anchor))
                anchor += accepted + 1
            assert tokens_per_cycle(target, drafter, text, path.answer, trainee.depth) == predicted
        row += length - 1
    tree = load_drafter(tmp_path / "drafter", target, 3)
    check_compatible(target.info, tree)
    tokens_per_cycle(target, tree, text_of(batch, batch.paths[0]), batch.paths[0].answer, 6)  # same tokens
    return trainee, weights


def check_paths_do_not_see_each_other(tmp_path: Path, name: str, **options: str) -> tuple[Loss, list[Loss]]:
    """Of a forest a trainee thinks what it thinks of each answer alone."""
    directory = write_target(tmp_path / "target")
    target, weights = load_target(directory), weights_of(directory)
    torch.manual_seed(1)
    trainee = make_trainee(name, weights, options)
    batch = answered(target)
    learn(trainee, batch, 5, 3e-3)
    together = judge(trainee, batch)
    alone = []
    for path in batch.paths:
        place = torch.full_like(batch.ids, -1)
        place[path.rows] = torch.arange(len(path.rows))
        before = batch.previous[path.rows]
        one = Batch(
            ids=batch.ids[path.rows],
            positions=batch.positions[path.rows],
            previous=torch.where(before < 0, before, place[before]),
            seen=batch.seen[path.rows][:, path.rows],
            features={layer: states[path.rows] for layer, states in batch.features.items()},
            paths=[replace(path, rows=place[path.rows])],
        )
        alone.append(judge(trainee, one))
    assert torch.equal(together.right, torch.cat([loss.right for loss in alone]))
    assert torch.equal(together.judged, torch.cat([loss.judged for loss in alone]))
    return together, alone
