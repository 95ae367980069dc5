"""The chart of the largest farm: the same bars as SVG and as PNG, and files that are whole or not there."""

from io import BytesIO
from pathlib import Path
from xml.parsers import expat

import pytest
from PIL import Image

from full_disk import full_disk
from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.recompute.bench import pictures
from gpupool.recompute.bench.chart import HEIGHT, WIDTH, Box, Words, lay_out, told
from gpupool.recompute.bench.pictures import check_file, png, svg, write

SIZES = {1: {512: 4096.0, 256: 2048.0, 128: 1024.0}, 7: {512: 40.0, 256: 20.0, 128: 10.0}}
SHAPES = lay_out("Largest <farm> & more", SIZES)


def test_each_level_has_a_bar_for_each_filter_and_larger_farms_have_higher_ones() -> None:
    bars = [shape for shape in SHAPES if isinstance(shape, Box) and shape.told]
    assert [bar.told for bar in bars] == [
        *("C1: 4 PiB", "C1: 2 PiB", "C1: 1 PiB", "C7: 40 TiB", "C7: 20 TiB", "C7: 10 TiB")
    ]
    heights = [bar.height for bar in bars]
    assert heights == sorted(heights, reverse=True)
    assert len({round(bar.y + bar.height, 6) for bar in bars}) == 1


@pytest.mark.parametrize("size", [1.0, 0.001, 10.0, 2.5, 1e9])
def test_everything_lies_within_the_picture(size: float) -> None:
    for shape in lay_out("A farm", {level: {512: size, 256: size / 2} for level in range(1, 8)}):
        assert 0 <= shape.x <= WIDTH
        assert 0 <= shape.y <= HEIGHT
        if isinstance(shape, Box):
            assert shape.width > 0
            assert shape.height > 0
            assert shape.x + shape.width <= WIDTH
            assert shape.y + shape.height <= HEIGHT


def test_an_svg_says_what_was_laid_out() -> None:
    elements: list[str] = []
    texts: list[str] = []
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, _: elements.append(name)
    parser.CharacterDataHandler = texts.append
    parser.Parse(svg(SHAPES), True)
    assert {shape.text for shape in SHAPES if isinstance(shape, Words)} <= {text.strip() for text in texts}
    boxes = sum(isinstance(shape, Box) for shape in SHAPES)
    assert elements.count("rect") == boxes + 1
    assert elements.count("title") == 6


def test_a_png_shows_what_was_laid_out() -> None:
    with Image.open(BytesIO(png(SHAPES))) as image:
        assert (image.format, image.size) == ("PNG", (2 * WIDTH, 2 * HEIGHT))
        for box in (shape for shape in SHAPES if isinstance(shape, Box) and shape.height > 4):
            middle = (int(2 * box.x + box.width), int(2 * box.y + box.height))
            colour = tuple(bytes.fromhex(box.colour[1:]))
            assert image.getpixel(middle) == colour, box
        title = image.crop((220, 20, 700, 50)).convert("L").tobytes()
        assert min(title) < 64, "there are letters"


@pytest.mark.parametrize("name", ["farm.svg", "farm.PNG"])
def test_a_chart_replaces_the_one_before(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    check_file(path)
    assert path.read_text() == "old"
    write(path, SHAPES)
    assert path.read_bytes()[:4] in {b"<svg", b"\x89PNG"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_chart_whole(tmp_path: Path) -> None:
    path = tmp_path / "farm.svg"
    path.write_text("old")
    with full_disk(), pytest.raises(EnvironmentProblemError, match=r"farm\.svg cannot be written"):
        write(path, SHAPES)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "words", "exit_code"),
    [
        ("farm", "SVG or a PNG", 2),
        ("farm.gif", "SVG or a PNG", 2),
        ("none/farm.svg", "no folder", 2),
        ("folder.svg", "is a folder", 2),
        ("x" * 250 + ".svg", "File name too long", 3),
    ],
)
def test_a_file_that_cannot_be_is_told_before_anything_is_measured(
    name: str, words: str, exit_code: int, tmp_path: Path
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(GpupoolError, match=words) as fault:
        check_file(tmp_path / name)
    assert fault.value.exit_code == exit_code


def test_a_png_without_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblemError) as fault:
        check_file(tmp_path / "farm.png")
    assert "gpupool[chart]" in fault.value.remedy
    with pytest.raises(EnvironmentProblemError, match="Pillow"):
        write(tmp_path / "farm.png", SHAPES)
    check_file(tmp_path / "farm.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tib", "words"),
    [
        *(
            (0.5, "0.5 TiB"),
            (390.4, "390 TiB"),
            (999.9, "1,000 TiB"),
            (1023.0, "1,023 TiB"),
            (2560.0, "2.5 PiB"),
        ),
        (1024.0 * 12345, "12,345 PiB"),
    ],
)
def test_sizes_are_told_as_people_say_them(tib: float, words: str) -> None:
    assert told(tib) == words
