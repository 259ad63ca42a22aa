"""What a soft sort is, apart from its tensors: the settings that travel through the operators as one string."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from algonet.relax import SIGMOIDS, Sigmoid, SmoothStep

from .networks import NETWORKS, Comparators, Network

#: Formulas and networks by their key, so that a string can name them. The library's own are known from the start.
_FORMS: dict[str, Sigmoid] = {cls().key: cls() for cls in SIGMOIDS} | {
    form.key: form for form in (SmoothStep(k) for k in range(21))
}
_NETWORKS: dict[str, Network] = {name: cls() for name, cls in NETWORKS.items()}


@dataclass(frozen=True)
class Plan:
    """Network, number of steps, wanted outputs and sigmoid; `masked` says that rows have lengths of their own."""

    network: str
    form: str
    steps: int | None = None
    keep: tuple[int, ...] | None = None
    masked: bool = False

    def encode(self) -> str:
        steps = "" if self.steps is None else str(self.steps)
        keep = "" if self.keep is None else ",".join(map(str, self.keep))
        return f"{self.network}|{self.form}|{steps}|{keep}|{'masked' if self.masked else ''}"

    def table(self, n: int, device: torch.device | str = "cpu") -> Comparators:
        return _moved(_NETWORKS[self.network], n, self.steps, self.keep, str(device))

    @property
    def sigmoid(self) -> Sigmoid:
        """The sigmoid with steepness 1."""
        return _FORMS[self.form]


_ENCODED: dict[tuple, tuple[Plan, str]] = {}


def planned(
    network: Network, relax: Sigmoid, steps: int | None, keep: tuple[int, ...] | None, masked: bool
) -> tuple[Plan, str]:
    """The plan and its string; a sigmoid or network from outside the library becomes known by its key here."""
    key = (network.name, relax.key, steps, keep, masked)
    if key not in _ENCODED:
        if relax.key not in _FORMS:
            _FORMS[relax.key] = replace(relax, steepness=1.0)
        if network.name not in _NETWORKS:
            _NETWORKS[network.name] = network
        plan = Plan(*key[:2], steps, keep, masked)
        _ENCODED[key] = plan, plan.encode()
    return _ENCODED[key]


@functools.lru_cache(maxsize=1024)
def decode(settings: str) -> Plan:
    network, form, steps, keep, masked = settings.split("|")
    wanted = tuple(map(int, keep.split(","))) if keep else None
    return Plan(network, form, int(steps) if steps else None, wanted, masked == "masked")


@functools.lru_cache(maxsize=256)
def _moved(network: Network, n: int, steps: int | None, keep: tuple[int, ...] | None, device: str) -> Comparators:
    return network.table(n, steps, keep).to(device)
