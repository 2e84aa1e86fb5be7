import pytest
import torch

from sparse_core.masks.hardconcrete import HardConcreteGates


@pytest.fixture
def gates():
    gates = HardConcreteGates(5)
    gates.log_alpha.data = torch.tensor([-6.0, -1.0, 0.0, 1.0, 6.0])
    return gates


def uniforms(count, seed=0):
    return torch.rand((count, 5), generator=torch.Generator().manual_seed(seed)).clamp(1e-6, 1 - 1e-6)


def test_expected_l0_is_the_share_of_samples_that_are_not_zero(gates):
    observed = (gates.sample(uniforms(40_000)) > 0).double().mean(dim=0)
    torch.testing.assert_close(observed, gates.expected_l0().detach().double(), atol=0.01, rtol=0)


def test_samples_lie_in_the_unit_interval_and_reach_both_ends(gates):
    drawn = gates.sample(uniforms(2_000)).detach()
    assert drawn.min() == 0 and drawn.max() == 1
    assert ((drawn > 0) & (drawn < 1)).any()


def test_gates_without_noise_are_exactly_closed_and_open_at_the_ends(gates):
    values = gates.values()
    assert values[0] == 0 and values[-1] == 1
    assert (values.diff() >= 0).all()


def test_the_l0_penalty_pushes_every_gate_towards_closed(gates):
    gates.expected_l0().sum().backward()
    assert (gates.log_alpha.grad > 0).all()


def test_a_gate_that_lowers_the_loss_is_pushed_open(gates):
    (1 - gates.sample(uniforms(2_000))).mean(dim=0).sum().backward()
    assert (gates.log_alpha.grad[1:4] < 0).all()
