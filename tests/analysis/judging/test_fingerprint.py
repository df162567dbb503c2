"""Results are comparable only with equal machines, power caps, engines, and variables that change
speed.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from harness.analysis.judging.fingerprint import as_items, between, differing, fingerprint
from harness.record import RunRecord

fields = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2"]))


def test_engine_power_cap_and_speed_variables_change_the_fingerprint(sample_run: RunRecord) -> None:
    run = sample_run
    others = [
        replace(run, settings=replace(run.settings, engine="slurm")),
        replace(run, machine=replace(run.machine, power_limit_w=300)),
        replace(run, environment={**run.environment, "OMP_NUM_THREADS": "7"}),
        replace(run, environment={**run.environment, "NCCL_ALGO": "Ring"}),
    ]
    asked = as_items(fingerprint(run))
    assert differing(asked, run) == []
    assert all(len(between(fingerprint(run), fingerprint(other))) == 1 for other in others)
    assert all(differing(as_items(fingerprint(other)), run) for other in others)


def test_versions_and_harmless_variables_do_not_change_the_fingerprint(
    sample_run: RunRecord,
) -> None:
    newer = replace(
        sample_run,
        software={**sample_run.software, "torch": "9.9"},
        environment={**sample_run.environment, "EDITOR": "vi"},
    )
    assert fingerprint(newer) == fingerprint(sample_run)


def test_a_reference_may_name_settings_that_no_longer_exist(sample_run: RunRecord) -> None:
    """References of earlier versions name settings and variables that are no longer read."""
    asked = (*as_items(fingerprint(sample_run)), "tune_loop_thread=True", "EDITOR=vi")
    assert differing(asked, sample_run) == []
    assert differing((), sample_run) == []


@given(fields, fields)
def test_differences_list_exactly_the_unequal_fields(a: dict[str, str], b: dict[str, str]) -> None:
    names = {line.partition(":")[0] for line in between(a, b)}
    assert names == {name for name, _ in set(a.items()) ^ set(b.items())}
    assert {line.partition(":")[0] for line in between(b, a)} == names
