"""The variables of farms: the defaults of the operators' guide, its meanings, and errors that name the variable."""

import pytest

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.variables import NAMES, PREFIX, ChiaposVariables


def read(**values: str) -> ChiaposVariables:
    return ChiaposVariables.from_environment({f"CHIAPOS_{name}": value for name, value in values.items()})


def test_the_defaults_are_those_of_the_guide() -> None:
    assert read() == ChiaposVariables()
    found = read()
    assert (found.max_cores, found.cuda_limit, found.opencl_limit) == (16, None, None)
    assert (found.min_gpu_log_entries, found.recompute_hosts, found.recompute_port) == (21, (), 11989)
    assert (found.recompute_timeout_s, found.recompute_connect_timeout_s) == (5.0, 2.0)
    assert found.recompute_retry_interval_s == 100.0


def test_every_variable_is_read() -> None:
    found = read(
        MAX_CORES="60",
        MAX_GPU_DEVICES="3",
        MAX_CUDA_DEVICES="2",
        MAX_OPENCL_DEVICES="0",
        MIN_GPU_LOG_ENTRIES="19",
        RECOMPUTE_HOST="192.168.1.10:11990,192.168.1.11,[::1]:5",
        RECOMPUTE_PORT="12000",
        RECOMPUTE_TIMEOUT="1500",
        RECOMPUTE_CONNECT_TIMEOUT="700",
        RECOMPUTE_RETRY_INTERVAL="1",
    )
    assert found == ChiaposVariables(
        max_cores=60,
        max_gpu_devices=3,
        max_cuda_devices=2,
        max_opencl_devices=0,
        min_gpu_log_entries=19,
        recompute_hosts=(("192.168.1.10", 11990), ("192.168.1.11", 12000), ("::1", 5)),
        recompute_port=12000,
        recompute_timeout_s=1.5,
        recompute_connect_timeout_s=0.7,
        recompute_retry_interval_s=1.0,
    )


def test_a_kind_of_card_overrides_the_number_of_all_cards() -> None:
    found = read(MAX_GPU_DEVICES="3", MAX_CUDA_DEVICES="0")
    assert (found.cuda_limit, found.opencl_limit) == (0, 3)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_variable_is_not_set(name: str) -> None:
    assert read(**{name: "  "}) == ChiaposVariables()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["many things", "1.5.x=", "9" * 30 + "!"])
def test_a_value_that_makes_no_sense_is_an_error_that_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=PREFIX + name):
        read(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RECOMPUTE_PORT", "0"),
        ("RECOMPUTE_PORT", "65536"),
        ("RECOMPUTE_TIMEOUT", "0"),
        ("MAX_CUDA_DEVICES", "-1"),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match="whole number"):
        read(**{name: value})


def test_cores_may_be_all_of_them() -> None:
    assert read(MAX_CORES="-3").max_cores == -3


def test_by_default_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIAPOS_MAX_CORES", "7")
    assert ChiaposVariables.from_environment().max_cores == 7
