import pytest

from cli.kit import assert_refused, shell

RUN = "compare --epsilon 3 --delta 1e-5 --adjacency zero-out --cohort 10 --dimension 100"
CALIBRATE = "calibrate --epsilon 3 --adjacency zero-out"
DESIGN = "design --bits 1 --design-epsilon"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("unknown", "No such command 'unknown'; see quietbit --help."),
        ("calibrat", "No such command 'calibrat'. Did you mean 'calibrate'?"),
        ("node intit", "No such command 'intit'. Did you mean 'init'?"),
        ("--unknown", "No such option: --unknown; see quietbit --help."),
        ("design --level 2", "No such option: --level (Possible options: --help, --levels)"),
        (
            "calibrate",
            "Missing options --epsilon, --delta and --adjacency; see quietbit calibrate --help.",
        ),
        ("design --levels two", "Invalid value for '--levels': 'two' is not a valid int"),
        ("design --levels", "Option '--levels' requires an argument"),
        ("certify", "Missing argument 'FILE'"),
        ("demo more", "Got unexpected extra argument (more)"),
        (f"{DESIGN} 1 --levels 1", "--levels must be a whole number from 2"),
        (f"{DESIGN} -3 --levels 4", "--design-epsilon must be"),
        ("data imagenet", "ACTION must be get"),
        ("train --mechanism gaussian --adjacency zero-out", "--epsilon must be given"),
        (
            "train --epsilon -1 --mechanism sign --adjacency zero-out",
            "--epsilon must be a finite",
        ),
        (f"{RUN}", "--rounds or --releases must be"),
        (f"{RUN} --rounds 3 --releases 2", "--rounds or --releases must be"),
        (f"{RUN} --rounds 3 --trust nobody", "--trust must be"),
        (f"{RUN} --rounds 3 --unit sample", "--samples must be given"),
        (f"{RUN} --rounds 3 --clip 0", "--clip is gone"),
        (f"{RUN} --rounds 3 --min-honest-clients 20", "--min-honest-clients must be"),
        (f"{CALIBRATE} --delta 0 --mechanism imvu --bits 0", "--bits must be"),
        (
            f"{CALIBRATE} --delta 1e-5 --mechanism gaussian --samples 10 --sampling-rate 2",
            "--sampling-rate must be",
        ),
        ("node status policy.toml --last 0", "--last must be"),
    ],
)
def test_every_refusal_has_one_voice(capsys, words, sentence):
    result = shell(capsys, words)
    assert_refused(result)
    assert result.err.startswith(sentence)


def test_a_group_without_a_command_prints_its_help_and_nothing_else(capsys):
    result = shell(capsys, "node")
    assert (result.code, result.err) == (2, "")
    assert "Usage" in result.out
