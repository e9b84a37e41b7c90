import pytest

from quietbit.cli.main import with_options
from quietbit.errors import InvalidParameter, QuietbitError
from unit.cli.kit import assert_refused, shell


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("unknown",), "No such command 'unknown'."),
        (("calibrat",), "No such command 'calibrat'. Did you mean 'calibrate'?"),
        (("node", "intit"), "No such command 'intit'. Did you mean 'init'?"),
        (("--unknown",), "No such option: --unknown."),
        (
            ("design", "--level", "2"),
            "No such option: --level (Possible options: --help, --levels).",
        ),
        (("calibrate",), "Missing option '--epsilon'."),
        (("design", "--levels", "two"), "Invalid value for '--levels': 'two' is not a valid int"),
        (("design", "--levels"), "Option '--levels' requires an argument."),
        (("certify",), "Missing argument 'FILE'."),
        (("demo", "more"), "Got unexpected extra argument (more)."),
        (
            ("design", "--levels", "1", "--bits", "1", "--design-epsilon", "1"),
            "--levels must be a whole number from 2",
        ),
        (
            ("train", "--mechanism", "gaussian", "--adjacency", "zero-out"),
            "--epsilon must be given for",
        ),
        (
            ("train", "--epsilon", "-1", "--mechanism", "sign", "--adjacency", "zero-out"),
            "--epsilon must be a finite",
        ),
    ],
)
def test_every_refusal_has_one_voice(capsys, words, sentence):
    result = shell(capsys, *words)
    assert_refused(result)
    assert result.err.startswith(sentence)


def test_only_options_of_the_command_are_renamed():
    def command(levels: int, target_epsilon: float) -> None: ...

    levels = InvalidParameter.of("input_levels", "2", 3)
    assert with_options(levels, command) == "--levels must be 2, got 3."
    assert with_options(levels, None) == "input_levels must be 2, got 3."
    assert (
        with_options(InvalidParameter.of("mechanism", "good"), command) == "mechanism must be good."
    )
    assert with_options(QuietbitError("Cannot read levels."), command) == "Cannot read levels."
    assert (
        with_options(InvalidParameter.of("target-epsilon", "2", 3), command)
        == "--target-epsilon must be 2, got 3."
    )
