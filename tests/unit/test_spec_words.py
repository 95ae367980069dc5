"""A spec that is refused says where, and what to write instead, in words of ours."""

import pytest

from gpupool.contracts.spec import MalformedSpecError, SpecFile, check_sense, parse_spec
from gpupool.core.errors import InvalidInputError

APP = "name: app\ncommand: [serve]\n"
GPU = APP + "gpu_count: 1\n"


def refusal(text: str) -> str:
    with pytest.raises(MalformedSpecError) as caught:
        parse_spec(text, "app.yaml")
    return caught.value.message


def test_numbers_stand_for_the_texts_that_are_written() -> None:
    spec = parse_spec(
        "name: app\ncommand: [serve, 60, --python, 3.10, 0x1F]\ngpu_count: 1\ninclude: [4090]\n"
        "env: {THREADS: 4, RATIO: 1.50}\nopenai: true\nmodels: [7]\n"
    )
    assert spec.command == ["serve", "60", "--python", "3.10", "0x1F"]
    assert spec.include == ["4090"]
    assert spec.env == {"THREADS": "4", "RATIO": "1.50"}
    assert spec.models == ["7"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GPU + 'include: ["RTX 4090"]\n', "app.yaml:4:11: include.0: is no short ref"),
        (GPU + "include: a6000\n", 'app.yaml:4:10: include: takes a list, such as ["4090", a6000]'),
        (GPU + "include: [rtx9999]\n", "app.yaml:4:11: include.0: The GPU catalog has no model 'rtx9999'"),
        ("name: My_App\ncommand: [x]\n", "app.yaml:1:7: name: takes 1 to 63 lower-case letters"),
        ("name: app\ncommand: sleep 60\n", 'command: takes a list of words, such as [sleep, "60"]'),
        (APP + "env: {A: true}\n", "env.A: takes a text; put quotes around it"),
        (APP + "env: {A-B: x}\n", "is no name of a variable"),
        (APP + "gpu_count: many\n", "app.yaml:3:12: gpu_count: takes a whole number"),
        (APP + "gpu_count: 11\n", "gpu_count: takes 10 or less"),
        (APP + "private: maybe\n", "private: takes true or false"),
        (APP + "kind: job\n", "kind: takes 'chute' or 'recompute'"),
        (APP + "health: health\n", "app.yaml:3:9: health: takes a path that begins with /"),
        (APP + "image: nginx\n", "app.yaml:3:8: image: an image and a command are both given"),
        ("name: app\n", "app.yaml:1:7: name: give a command"),
        (APP + "---\nname: b\n", "app.yaml:3:1: a second document begins here"),
        ("name: app: x\n", "app.yaml:1:10: a colon too much here"),
        ("name: app\n\tport: 1\n", "app.yaml:2:1: a tab stands here"),
        ("name: app\ncommand: [x\n", "a list that was opened with [ is not closed"),
        ("just words\n", 'app.yaml:1:1: a spec is written in lines of "field: value"'),
    ],
)
def test_a_mistake_is_told_in_our_words(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (APP + "min_vram_gb: 24\n", "app.yaml:3:14: min_vram_gb: asks for GPUs, and gpu_count is 0"),
        (APP + 'include: ["4090"]\n', "include: asks for GPUs"),
        (APP + 'exclude: ["4090"]\n', "exclude: asks for GPUs"),
        (APP + "max_price: 1\n", "max_price: asks for GPUs"),
        (GPU + 'include: ["4090"]\nexclude: ["4090", a6000]\n', "app.yaml:5:10: exclude: takes away every"),
        (APP + "models: [m]\n", "app.yaml:3:9: models: only an app that speaks the OpenAI API"),
        (APP + "port: 80\n", "app.yaml:3:7: port: a workload may listen on ports from 1024 on only"),
        (
            'name: app\ncommand: [serve, --port, "{prot}"]\n',
            "app.yaml:2:26: command.2: {prot} is not filled in",
        ),
        ('name: app\ncommand: [serve, "{Hosts}"]\n', "is {host} meant?"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused(text: str, said: str) -> None:
    assert said in refusal(text)


def test_other_braces_are_left_alone() -> None:
    command = ["sh", "-c", "awk '{print}' <<< ${PORT} {a: 1} {port}"]
    check_sense(SpecFile(name="app", command=command))


def test_control_refuses_the_same_wishes_without_a_place() -> None:
    with pytest.raises(InvalidInputError, match=r"^port: a workload may listen"):
        check_sense(SpecFile(name="app", command=["serve"], port=80))
