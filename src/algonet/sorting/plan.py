"""What a soft sort is, apart from its tensors: the settings that travel through the operators as one string."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from algonet.relax import SIGMOIDS, Sigmoid, SmoothStep

from .cache import ByteCache
from .identity import identity
from .networks import NETWORKS, Comparators, Network

#: Sigmoids and networks by the token that stands for them in a settings string. The library's own are known from the
#: start, so that an exported program finds them in another process.
_SIGMOIDS: dict[str, Sigmoid] = {cls().key: cls() for cls in SIGMOIDS} | {
    sigmoid.key: sigmoid for sigmoid in (SmoothStep(k) for k in range(21))
}
_NETWORKS: dict[str, Network] = {name: cls() for name, cls in NETWORKS.items()}
_TOKENS: dict[Hashable, str] = {identity(option): token for token, option in (_SIGMOIDS | _NETWORKS).items()}


def _token(option: Sigmoid | Network, known: dict) -> str:
    """What stands for an option in a string: one token for each identity, so that no two options share one."""
    key = identity(option)
    if key not in _TOKENS:
        token = f"{type(option).__name__}_{len(_TOKENS)}"
        known[token] = replace(option, steepness=1.0) if isinstance(option, Sigmoid) else option
        _TOKENS[key] = token
    return _TOKENS[key]


@dataclass(frozen=True)
class Plan:
    """Tokens of network and sigmoid, number of steps, wanted outputs; `masked` says that rows have their own lengths."""

    network_token: str
    sigmoid_token: str
    steps: int | None = None
    keep: tuple[int, ...] | None = None
    masked: bool = False

    def encode(self) -> str:
        steps = "" if self.steps is None else str(self.steps)
        keep = "" if self.keep is None else ",".join(map(str, self.keep))
        return f"{self.network_token}|{self.sigmoid_token}|{steps}|{keep}|{'masked' if self.masked else ''}"

    def table(self, n: int, device: torch.device | str = "cpu") -> Comparators:
        place = torch.device(device)
        if place.type == "cpu":
            return self.network.table(n, self.steps, self.keep)
        key = (self.network_token, n, self.steps, self.keep, place)
        return _MOVED.get(key, place, lambda: self.network.table(n, self.steps, self.keep).to(device))

    @property
    def network(self) -> Network:
        return _NETWORKS[self.network_token]

    @property
    def sigmoid(self) -> Sigmoid:
        """The sigmoid with steepness 1."""
        return _SIGMOIDS[self.sigmoid_token]


#: Tables on other devices than the CPU: enough for a few networks of some thousand items.
_MOVED: ByteCache[Comparators] = ByteCache(64 * 2**20, Comparators.tensors)


def planned(
    network: Network, relax: Sigmoid, steps: int | None, keep: tuple[int, ...] | None, masked: bool
) -> tuple[Plan, str]:
    """The plan and its string; a sigmoid or network from outside the library gets its token here."""
    key = (_token(network, _NETWORKS), _token(relax, _SIGMOIDS), steps, keep, masked)
    found = _PLANS.get(key)
    if found is None:
        plan = Plan(*key)
        found = plan, plan.encode()
        if len(_PLANS) >= 256:
            _PLANS.clear()
        _PLANS[key] = found
    return found


#: A dictionary, because Dynamo traces it and warns of `lru_cache`.
_PLANS: dict[tuple, tuple[Plan, str]] = {}


@functools.lru_cache(maxsize=256)
def decode(settings: str) -> Plan:
    network, sigmoid, steps, keep, masked = settings.split("|")
    wanted = tuple(map(int, keep.split(","))) if keep else None
    return Plan(network, sigmoid, int(steps) if steps else None, wanted, masked == "masked")
