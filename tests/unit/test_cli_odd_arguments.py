"""Arguments that are no text, since any byte but zero may be in one; and output that nobody can take."""

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["doctor", "--json"], ["--help"], ["recompute", "doctor", "--json"]])
def test_output_that_cannot_be_written_is_told_in_words(
    words: list[str], unbuffered: str, tmp_path: Path
) -> None:
    environment = {"GPUPOOL_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "gpupool", *words],
            env=os.environ | environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    said = [line for line in ended.stderr.splitlines() if "Standard output" in line or "What to do" in line]
    assert said[0] == "Error [environment]: Standard output cannot be written: No space left on device."
    assert len(said) == 2
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ended.returncode == 3
