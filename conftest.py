"""Doctests of the package see torch without importing it in each example; `--shuffle` runs everything in random order,
`--margins` lists comparisons that are near their bounds."""

from __future__ import annotations

import os
import random

# Set before torch is loaded, and for processes that tests start: several test processes whose torch takes every core for itself
# mostly wait for each other's threads. Tests of threads ask for them.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict) -> None:
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = torch.nn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="run files, and the tests in each, in random order; the seed is shown, and gives the same order again",
    )
    parser.addoption("--margins", action="store_true", help="list comparisons that use over a third of their bound")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.margins:
        from helpers.margins import Margins

        config.pluginmanager.register(Margins(config))
    if config.option.shuffle == -1:
        # Workers read the command line again; they take the seed that was drawn for all, and thus the same order
        drawn = getattr(config, "workerinput", {}).get("shuffle")
        config.option.shuffle = random.SystemRandom().randrange(2**32) if drawn is None else drawn


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["shuffle"] = node.config.option.shuffle


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if config.option.shuffle is None else f"in random order: --shuffle {config.option.shuffle}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.shuffle is None:
        return
    order = random.Random(config.option.shuffle)
    # Files stay together: fixtures of a module are made once
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)
    groups = list(files.values())
    order.shuffle(groups)
    for group in groups:
        order.shuffle(group)
    items[:] = [item for group in groups for item in group]


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    # With -q there is no header
    if config.option.shuffle is not None:
        terminalreporter.write_line(f"in random order: --shuffle {config.option.shuffle}")
