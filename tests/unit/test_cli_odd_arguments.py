"""Arguments that are no text: any byte but zero may be in one."""

import sys

import pytest

from gpupool.cli.main import main

ODD = "nope\udcff"


@pytest.mark.parametrize(
    "words", [["chute", "delete", ODD, "--yes"], ["chute", "show", ODD], ["chute", "logs", ODD]]
)
def test_a_name_that_is_no_text_is_refused_in_words(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPOOL_TOKEN", "x" * 43)
    monkeypatch.setattr(sys, "argv", ["gpupool", *words, "--control", "http://127.0.0.1:9"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "nope\\udcff is not UTF-8 text" in said
    assert "What to do: " in said
