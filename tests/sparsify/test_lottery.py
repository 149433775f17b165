import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.sparsify.magnitude_pruning import lottery_ticket


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4))


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 10, generator=generator), torch.randn(64, 4, generator=generator)


class Trainer:
    """A user's training, which notes what it began with and what it saw after step 3."""

    def __init__(self, optimizer=torch.optim.SGD, steps=8, attach=True):
        self.optimizer, self.steps, self.attach = optimizer, steps, attach
        self.began, self.early, self.trained, self.masks = [], [], [], []

    def __call__(self, model, masks):
        optimizer = self.optimizer(model.parameters(), lr=0.05)
        if self.attach:
            masks.attach(optimizer)
        self.began.append(copies(model))
        self.masks.append(masks.state_dict())
        x, y = samples()
        for step in range(1, self.steps + 1):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            for name in masks:
                assert (masks.weight(name)[~masks[name]] == 0).all() or not self.attach
            if step == 3:
                self.early.append(copies(model))
        self.trained.append(copies(model))


def copies(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_counts_are_exact_after_every_round(optimizer):
    model, train = network(), Trainer(optimizer)
    ticket = lottery_ticket(model, train, sparsity=0.9, rounds=4)
    sizes = {"0.weight": 200, "3.weight": 80}
    assert len(train.masks) == 4
    for number, masks in enumerate([*train.masks[1:], ticket.masks.state_dict()], start=1):
        for name, size in sizes.items():
            assert int(masks[name].sum()) == round(size * 0.1 ** (number / 4))
    assert ticket.sparsities[-1] == pytest.approx(0.9)
    assert ticket.sparsities == tuple(sorted(ticket.sparsities))


def test_what_is_pruned_stays_so_and_is_the_smallest_after_training():
    model, train = network(), Trainer()
    ticket = lottery_ticket(model, train, sparsity=0.8, rounds=3)
    rounds = [*train.masks, ticket.masks.state_dict()]
    for before, after, trained in zip(rounds, rounds[1:], train.trained, strict=False):
        for name in ticket.masks:
            assert not (after[name] & ~before[name]).any()
            kept, lost = after[name], before[name] & ~after[name]
            assert trained[name][kept].abs().min() >= trained[name][lost].abs().max()


def test_rewinds_to_the_start_under_the_masks():
    model, train = network(), Trainer()
    start = copies(model)
    ticket = lottery_ticket(model, train, sparsity=0.8, rounds=3)
    for began, masks in zip(train.began, train.masks, strict=True):
        for name, value in start.items():
            torch.testing.assert_close(began[name], value * masks.get(name, 1), rtol=0, atol=0)
    for name, value in model.state_dict().items():
        wanted = start[name] * ticket.masks[name] if name in ticket.masks.names else start[name]
        assert torch.equal(value, wanted)


def test_rewinds_to_an_early_step_buffers_too():
    model, train = network(), Trainer()
    other = nn.Linear(2, 2)
    distraction = torch.optim.SGD(other.parameters(), lr=0.1)

    def train_beside_another(model, masks):
        distraction.step()  # Another model's optimizer does not count.
        train(model, masks)

    ticket = lottery_ticket(model, train_beside_another, sparsity=0.5, rounds=2, rewind_steps=3)
    early = train.early[0]
    assert all(torch.equal(ticket.start[name], value) for name, value in early.items())
    for name, value in train.began[1].items():
        assert torch.equal(value, early[name] * train.masks[1].get(name, 1))
    assert int(model[1].num_batches_tracked) == 3


def test_the_ticket_trains_on_with_its_masks():
    model = network()
    ticket = lottery_ticket(model, Trainer(), sparsity=0.9, rounds=2)
    Trainer()(model, ticket.masks)
    assert int((model[0].weight != 0).sum()) == 20


def test_the_hook_of_all_optimizers_is_taken_off_again():
    from torch.optim import optimizer as module

    before = len(module._global_optimizer_post_hooks)

    def fail(model, masks):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        lottery_ticket(network(), fail, sparsity=0.5, rounds=1, rewind_steps=2)
    assert len(module._global_optimizer_post_hooks) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rewind_steps": -1}, "rewind_steps is -1"),
        ({"rewind_steps": 9}, "rewind_steps is 9, but train made 8"),
        ({"sparsity": 1.2}, "sparsity is 1.2"),
        ({"sparsity": 1.0}, "weight"),
        ({"exclude": ("no*",)}, "no"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(ValueError, match=message):
        lottery_ticket(network(), Trainer(), **{"sparsity": 0.5, **settings})


def test_a_training_without_the_masks_is_noticed():
    with pytest.raises(ValueError, match=r"masks\.attach\(optimizer\)"):
        lottery_ticket(network(), Trainer(attach=False), sparsity=0.5, rounds=2)


def test_overrides_exclusions_and_one_weight_at_least():
    ticket = lottery_ticket(
        network(), Trainer(), sparsity=0.5, rounds=2, overrides={"3.weight": 0.75}
    )
    assert [ticket.masks.nnz(name) for name in ticket.masks] == [100, 20]
    ticket = lottery_ticket(
        network(), Trainer(), sparsity=0.999, rounds=2, exclude=["3.*"], keep_one=True
    )
    assert {name: ticket.masks.nnz(name) for name in ticket.masks} == {"0.weight": 1}
