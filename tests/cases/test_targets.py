"""A command line names a case, a recipe, a file or a folder of suites; anything else is one clear
error.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Mode, Site
from harness.cases.targets import SETTABLE, case_of, plans_of
from harness.interface.cli.main import main

ROOT = Path(__file__).parents[2]
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
KNOWN = Catalogue()

SUITE = """
from harness import ladder, scaling

def weak(site):
    return [ladder(site.case("ddp/mlp-nano"), (1, 2))]

def nothing(site):
    return 3

@scaling(weak)
def test_weak(verdict): ...
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "test_mine.py"
    path.write_text(SUITE)
    return path


@pytest.mark.parametrize("of", ["", "::weak", "::test_weak"])
def test_a_file_a_recipe_and_a_test_select_the_same_plan(suite: Path, of: str) -> None:
    (plan,) = plans_of(f"{suite}{of}", SITE, KNOWN, {})
    (by_folder,) = plans_of(str(suite.parent), SITE, KNOWN, {})
    assert plan == by_folder and plan.name == "ddp/mlp-nano/weak"


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        ("::strong", "no function 'strong'"),
        ("::nothing", "'nothing' is not a recipe"),
    ],
)
def test_a_target_that_is_not_a_recipe_is_refused(suite: Path, of: str, wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        plans_of(f"{suite}{of}", SITE, KNOWN, {})


def test_a_recipe_of_fault_scenarios_names_the_faults_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SpecError) as error:
        plans_of("suites/ladders.py::checkpoints", SITE, KNOWN, {})
    assert error.value.fix == "scaleproof faults recover fsdp/decoder-tiny/weak"
    assert case_of(shlex.split(error.value.fix)[3], SITE, {}).mode is Mode.WEAK


def test_settings_are_accepted_only_with_a_single_case(suite: Path) -> None:
    with pytest.raises(SpecError, match="only with a single case"):
        plans_of(str(suite), SITE, KNOWN, {"micro_batch": 8})


def test_a_failing_import_is_reported_with_its_line(suite: Path) -> None:
    marked = "from harness import scaling\n\n\n@scaling()\ndef test_mine(verdict): ...\n"
    suite.write_text(f"import nothing_there\n{marked}")
    with pytest.raises(SpecError, match="cannot be imported: ModuleNotFoundError") as error:
        plans_of(str(suite), SITE, KNOWN, {})
    assert error.value.where == f"{suite}:1"


@pytest.mark.parametrize("name", ["train.py", "test_training.py"])
def test_a_training_script_without_the_script_option_is_not_imported(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing the script would start the training, with scaleproof's arguments and in a dry run."""
    path, touched = tmp_path / name, tmp_path / "touched"
    path.write_text(f"from pathlib import Path\nPath({str(touched)!r}).write_text('trained')\n")
    with pytest.raises(SpecError, match="no function in it is marked @scaling") as error:
        plans_of(str(path), SITE, KNOWN, {})
    assert error.value.fix == f"scaleproof run --script --cpus {SITE.world_size} -- {path}"
    for words in (["run", str(path), "--cpus", "2", "--dry-run"], ["run", "plan", str(path)]):
        assert main(words) == 4
        assert "--script" in capsys.readouterr().err
    assert plans_of(str(tmp_path), SITE, KNOWN, {}) == []
    assert not touched.exists()


def test_a_suite_with_a_syntax_error_is_one_clear_error(suite: Path) -> None:
    suite.write_text("from harness import scaling\n@scaling(\n")
    for target in (suite, suite.parent):
        with pytest.raises(SpecError, match="cannot be imported: SyntaxError"):
            plans_of(str(target), SITE, KNOWN, {})


def test_a_failing_recipe_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os\n\n\ndef weak(site):\n    return [os.environ['NO_SUCH_CASE']]\n")
    with pytest.raises(SpecError, match="'weak' failed: KeyError: 'NO_SUCH_CASE'") as error:
        plans_of(f"{path}::weak", SITE, KNOWN, {})
    assert error.value.where == f"{path}:5"


def test_a_printed_case_id_is_refused_with_the_command_that_runs_it() -> None:
    printed = SITE.case("ddp/mlp-nano", micro_batch=8).id
    with pytest.raises(SpecError) as error:
        case_of(printed, SITE, {})
    words = shlex.split(error.value.fix)
    assert words == [
        "scaleproof", "run", "ddp/mlp-nano/weak", "--cpus", "2", "--set", "micro_batch=8",
    ]  # fmt: skip
    assert case_of(words[2], SITE, {"micro_batch": 8}).id == printed


@pytest.mark.parametrize("name", SETTABLE)
def test_a_misspelt_field_is_reported_with_the_right_one(name: str) -> None:
    with pytest.raises(SpecError) as error:
        case_of("ddp/mlp-nano", SITE, {f"{name}x": 1})
    assert name in f"{error.value} {error.value.expected}"


@pytest.mark.parametrize(
    ("target", "fix"),
    [("suites", "scaleproof new suites"), ("train.py::weak", "scaleproof new")],
)
def test_a_missing_file_or_folder_is_not_reported_as_a_misspelt_case(
    target: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="neither a folder of suites nor a file") as caught:
        plans_of(target, SITE, KNOWN, {})
    assert caught.value.fix == fix
    with pytest.raises(SpecError, match="is not a case"):
        plans_of("ddp", SITE, KNOWN, {})
