"""The hooks that pytest loads in every project (``pytest suites/ --gpus 8``).

In a project without a suite, the plugin only adds its long options: no short ones and no markers.
It does not read the environment and imports nothing else. A suite is a file that imports from
``harness`` and calls ``scaling`` or ``recovering``. ``items.py`` collects and measures suites.
"""

import os
import warnings
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.base.errors import ScaleproofError
from harness.base.programs import MARK, RECOVERS, is_suite
from harness.interface.offered import OPTIONS

if TYPE_CHECKING:
    from harness.record import Verdict

#: Tiers of suites, as markers: ``pytest suites/ -m nightly``.
TIERS = (
    "smoke: suites that finish in minutes on a laptop",
    "nightly: suites that take longer and run every night",
    "acceptance: suites that measure published claims",
)
#: Largest depth of folders in which suites are searched for.
DEPTH = 8
#: Largest number of files in which suites are searched for.
FILES = 2000
_NEAR = pytest.StashKey[bool]()
#: The name under which a worker of pytest-xdist reports that it has collected scaling suites.
PARALLEL = "scaleproof_parallel"
_PARALLEL = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scaling", "scaleproof: measuring and judging how training scales")
    for option in OPTIONS:
        group.addoption(f"--scaling-{option.name}", help=option.help, **option.kwargs)
    group.addoption(
        "--scaling-inconclusive",
        choices=("fail", "warn"),
        default="fail",
        help="whether an INCONCLUSIVE verdict fails the run (default: fail)",
    )
    group.addoption(
        "--scaling-benchmark",
        action="store_true",
        help="also show measured launches in pytest-benchmark's table and files",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, None, None]:
    """Add the short options whose names no other plugin and no conftest uses.

    pytest rewrites the assertions of every package that has a plugin. This package does not need
    it, and the import of its modules would take a second longer in each run.
    """
    rewriting = early_config.pluginmanager.rewrite_hook
    getattr(rewriting, "_must_rewrite", set[str]()).discard("harness")
    yield
    early_config.stash[_NEAR] = near = any(map(is_suite, islice(_tests(early_config), FILES)))
    if not near:
        return
    group = parser.getgroup("scaling")
    taken = _option_names(parser)
    for option in OPTIONS:
        if f"--{option.name}" in taken:
            continue  # another plugin has this name, so only --scaling-NAME is available
        dest = f"scaleproof_short_{option.name.replace('-', '_')}"
        group.addoption(
            f"--{option.name}",
            dest=dest,
            help=f"short for --scaling-{option.name}",
            **option.kwargs,
        )


def _option_names(parser: pytest.Parser) -> set[str]:
    """Return the names of all options that pytest, its plugins and conftests have added.

    If two groups have an option of the same name, pytest 8 notices this only when it builds its
    parser, and fails with a traceback.
    """
    groups = [parser._anonymous, *parser._groups]
    return {name for group in groups for option in group.options for name in option.names()}


def _tests(config: pytest.Config) -> Iterator[Path]:
    """Yield the Python files in which this run of pytest may look for tests."""
    start_folder = config.invocation_params.dir
    named = [a.split("::")[0] for a in config.known_args_namespace.file_or_dir]
    paths = [
        start_folder / n for n in named if (start_folder / n).exists()
    ]  # some may be values of options that pytest does not know yet
    usual = [config.rootpath / p for p in config.getini("testpaths")]
    for place in (*paths, *(usual or [start_folder])):
        if place.is_file():
            yield place
            continue
        for folder, below, files in os.walk(place):
            deep = len(Path(folder).relative_to(place).parts) >= DEPTH
            below[:] = [] if deep else [b for b in below if b[0] not in "._" and b != "venv"]
            yield from (Path(folder) / f for f in files if f.endswith(".py"))


def pytest_configure(config: pytest.Config) -> None:
    """Check the given options before anything is collected."""
    if config.stash.get(_NEAR, False):
        for tier in TIERS:
            config.addinivalue_line("markers", tier)
        # pytest-benchmark warns at the end of a session that timed nothing. With -W error this
        # would be an error outside of any test, although the verdicts say why nothing was timed.
        warnings.filterwarnings("default", "Not saving anything")
    given = (
        getattr(config.option, f"{kind}_{option.name.replace('-', '_')}", None)
        not in (None, False, option.kwargs.get("default"))
        for option in OPTIONS
        for kind in ("scaleproof_short", "scaling")
    )
    if any(given):
        from harness.interface.plugin.items import site_of
        from harness.launch import deploy

        try:
            catalogue, site = site_of(config)
            deploy.usable(catalogue.get("engines", site.engine))
        except ScaleproofError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Remember that a worker of pytest-xdist has refused scaling suites."""
    node.config.stash[_PARALLEL] = PARALLEL in getattr(node, "workeroutput", {})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the status of a usage error if scaling suites were started in parallel."""
    if session.config.stash.get(_PARALLEL, False):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Register the rest of the plugin at the first function of a suite, and create its items."""
    if not hasattr(metafunc.function, MARK) and not hasattr(metafunc.function, RECOVERS):
        return
    from harness.interface.plugin import items

    if not metafunc.config.pluginmanager.is_registered(items):
        metafunc.config.pluginmanager.register(items, "scaleproof-items")
    items.generate(metafunc)


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> "Verdict":
    """Return the verdict of this item; measure its plan or fault scenario if necessary."""
    from harness.interface.plugin.items import answer

    return answer(request)
