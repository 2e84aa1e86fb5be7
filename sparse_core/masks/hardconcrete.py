"""HardConcrete gates: stochastic 0/1 switches with a differentiable count of the open ones.

Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization" (ICLR 2018);
used for concept masks in arXiv 2602.07090.
"""

import math

import torch

LOWER, UPPER = -0.1, 1.1  # the interval a binary concrete variable is stretched to before clipping


class HardConcreteGates(torch.nn.Module):
    """One gate per direction.

    Parameters
    ----------
    count : int
        Number of gates.
    temperature : float
        Of the binary concrete distribution (beta in Louizos et al.). Smaller is closer to 0/1 and
        gives noisier gradients.
    initial : float
        Starting value of every gate's ``log_alpha``.
    """

    def __init__(self, count: int, *, temperature: float = 2 / 3, initial: float = 1.0):
        super().__init__()
        self.temperature = temperature
        self.log_alpha = torch.nn.Parameter(torch.full((count,), float(initial)))

    def sample(self, uniforms: torch.Tensor) -> torch.Tensor:
        """Draw gates in [0, 1] from ``uniforms`` in (0, 1), shape (..., count); differentiable."""
        logistic = torch.log(uniforms) - torch.log1p(-uniforms)
        concrete = torch.sigmoid((logistic + self.log_alpha) / self.temperature)
        return (concrete * (UPPER - LOWER) + LOWER).clamp(0, 1)

    def expected_l0(self) -> torch.Tensor:
        """Probability that each gate is not exactly 0, shape (count,): its sum is the expected L0 norm."""
        return torch.sigmoid(self.log_alpha - self.temperature * math.log(-LOWER / UPPER))

    def values(self) -> torch.Tensor:
        """The gates without noise, as used after training, shape (count,)."""
        return (torch.sigmoid(self.log_alpha) * (UPPER - LOWER) + LOWER).clamp(0, 1)
