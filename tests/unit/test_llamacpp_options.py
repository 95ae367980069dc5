"""The launcher's command line, and the demo spec that uses it."""

from importlib import resources

import pytest

from gpupool.contracts.spec import parse_spec
from gpupool.engines import llamacpp
from gpupool.engines.llamacpp import parse_options


def test_defaults_are_the_safe_ones() -> None:
    options = parse_options(["--model", "smollm2"])
    assert (options.host, options.threads, options.parallel) == ("127.0.0.1", 1, 1)


@pytest.mark.parametrize(
    "wrong", [["--port", "65536"], ["--port", "-1"], ["--threads", "0"], ["--context", "x"]]
)
def test_a_value_out_of_range_is_refused_with_status_2(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--model", "smollm2", *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_known_fault_ends_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert llamacpp.main(["--model", "nothing"]) == 2
    assert "What to do: Give one of: smollm2" in capsys.readouterr().err


def test_the_demo_spec_is_valid_and_its_command_parses() -> None:
    text = resources.files("gpupool.engines").joinpath("specs/demo.yaml").read_text()
    spec = parse_spec(text, "demo.yaml")
    assert (spec.gpu_count, spec.openai, spec.private) == (0, True, True)
    program, arguments = spec.command[:3], spec.command[3:]
    assert program == ["python", "-m", "gpupool.engines.llamacpp"]
    options = parse_options([part.format(port=30001, host="127.0.0.1") for part in arguments])
    assert [options.alias] == spec.models
    assert options.threads == 1
    assert options.parallel == spec.concurrency
