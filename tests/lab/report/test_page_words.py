from quietbit import Adjacency, Guarantee, Trust, Unit
from quietbit_lab.report.page_words import (
    guarantee_template,
    setting_words,
    spelt_out,
    task_words,
    trust_words,
)


def test_the_template_is_the_guarantee_s_own_sentence():
    for unit in Unit:
        for adjacency in Adjacency:
            for trust in Trust:
                said = Guarantee(3.25, 1e-6, unit, adjacency, trust).sentence()
                template = guarantee_template(unit.value, adjacency.value, trust.value, 1e-6)
                assert template.replace("{epsilon}", "3.25") == said


def test_every_part_of_a_guarantee_is_spelt_out():
    client = dict(spelt_out("client", "zero-out", 1e-5))
    assert "zero vector" in client["Which worlds (adjacency)"]
    assert "One client" in client["Whose data (unit)"]
    assert "1e-05" in client["Delta = 1e-05"]
    sample = dict(spelt_out("sample", "replace-one", 0.0))
    assert "one sample, whose contribution may be any other" in sample["Which worlds (adjacency)"]
    assert "nobody is trusted" in trust_words("local")
    assert "sum" in trust_words("secure-aggregation")


def test_settings_and_tasks_in_words():
    settings = {
        "mechanism": "sign",
        "lr": 0.1,
        "seed": 1,
        "noise_multiplier": None,
        "beta": 1.0,
        "local_steps": 1,
        "local_rate": 1,
    }
    assert setting_words({**settings, "brand_new": 2}) == {
        "step size": 0.1,
        "local steps": 1,
        "brand new": 2,
    }
    assert setting_words({**settings, "mechanism": "imvu", "local_steps": 2}) == {
        "step size": 0.1,
        "local steps": 2,
        "local rate": 1,
    }
    assert setting_words({"mechanism": "imvu", "beta": 2.0, "decoder": "unbiased-at-zero"}) == {
        "beta": 2.0
    }
    task = {"name": "digits", "model": "linear", "clients": "examples", "samples": 1}
    assert task_words(task) == "digits (linear model, every client one example)"
    assert task_words({**task, "samples": 5}) == "digits (linear model, every client 5 examples)"
    assert task_words({"name": "femnist", "clients": "writers"}) == "femnist (clients are writers)"
    assert task_words({"name": "x"}) == "x"
