import pytest

import quietbit
from quietbit_lab.task.dataset import MissingData
from quietbit_lab.task.registry import TaskSpec, build_task


def test_words_have_the_defaults_of_the_paper():
    assert TaskSpec("mnist").to_json() == {
        "name": "mnist",
        "model": "scatter",
        "clients": "examples",
        "samples": 1,
        "least": 1,
    }
    assert TaskSpec("femnist").clients == "writers"
    assert TaskSpec.from_json({"name": "cifar10"}).model == "scatter"
    assert TaskSpec("cifar10", "efficientnet-head").model == "efficientnet-head"


@pytest.mark.parametrize(
    "given",
    [
        {"name": "imagenet"},
        {"name": "digits", "model": "scatter"},
        {"name": "cifar10", "model": "cnn"},
        {"name": "cifar10", "clients": "writers"},
        {"name": "mnist", "model": "efficientnet-head"},
        {"name": "mnist", "samples": 0},
        {"name": "mnist", "colour": "red"},
        {},
    ],
)
def test_refusals(given):
    with pytest.raises(quietbit.InvalidParameter):
        TaskSpec.from_json(given)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "femnist"])
def test_missing_data_is_one_sentence(tmp_path, name):
    with pytest.raises(MissingData):
        build_task(TaskSpec(name), data=tmp_path)
