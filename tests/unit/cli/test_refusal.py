import pytest

from quietbit.cli.refusal import of_library, of_usage
from quietbit.errors import InvalidParameter, QuietbitError
from unit.cli.kit import assert_refused, shell


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("unknown",), "There is no command unknown: see quietbit --help."),
        (("calibrat",), "There is no command calibrat: did you mean calibrate?"),
        (("node", "intit"), "There is no command node intit: did you mean node init?"),
        (("--unknown",), "There is no option --unknown: see quietbit --help."),
        (("design", "--level", "2"), "There is no option --level: did you mean --levels?"),
        (("calibrate",), "--epsilon must be given: see quietbit calibrate --help."),
        (("design", "--levels", "two"), "--levels must be a whole number, got 'two'."),
        (("design", "--levels"), "--levels must be given a value: see quietbit design --help."),
        (("catalogue", "--epsilon", "x"), "--epsilon must be a number, got 'x'."),
        (("certify",), "FILE must be given: see quietbit certify --help."),
        (("report",), "RUNS must be given: see quietbit report --help."),
        (("demo", "more"), "There is no place for 'more': see quietbit demo --help."),
        (("design", "--levels", "1", "--bits", "1", "--design-epsilon", "1"), "--levels must be a whole number from 2"),
        (("train", "--mechanism", "gaussian", "--adjacency", "zero-out"), "--noise-multiplier must be given for"),
        (("train", "--epsilon", "-1", "--mechanism", "sign", "--adjacency", "zero-out"), "--epsilon must be a finite"),
    ],
)  # fmt: skip
def test_every_refusal_has_one_voice(capsys, words, sentence):
    result = shell(capsys, *words)
    assert_refused(result)
    assert result.err.startswith(sentence)


def test_only_options_of_the_command_are_renamed():
    def command(levels: int, target_epsilon: float) -> None: ...

    levels = InvalidParameter.of("input_levels", "2", 3)
    assert of_library(levels, command) == "--levels must be 2, got 3."
    assert of_library(levels, None) == "input_levels must be 2, got 3."
    assert of_library(InvalidParameter.of("mechanism", "good"), command) == "mechanism must be good."
    assert of_library(QuietbitError("Cannot read levels."), command) == "Cannot read levels."
    assert of_library(InvalidParameter.of("target-epsilon", "2", 3), command) == "--target-epsilon must be 2, got 3."


def test_a_refusal_of_no_known_kind_is_passed_on():
    class Strange(Exception):
        message = "Something else."

        def format_message(self) -> str:
            return self.message

    assert of_usage(Strange()) == "Something else."
