"""One table of tolerances by dtype. Loosening one for a case needs the measured error beside it."""

from __future__ import annotations

import torch

#: dtype -> (relative, absolute)
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (2e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, factor: float = 1.0, what: str = "values") -> None:
    """Equal up to the table's tolerance for actual's dtype, times `factor`; NaN equals NaN."""
    relative, absolute = TOLERANCES[actual.dtype]
    torch.testing.assert_close(
        actual,
        expected.to(actual),
        rtol=relative * factor,
        atol=absolute * factor,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )
