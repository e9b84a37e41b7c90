"""A registry's entry says what the guarantee says, epsilon rounded up, else TODO."""

import pytest

from cli.kit import assert_refused, shell
from lab.experiment.test_flower_record import saved
from lab.report.makers import changed, runs
from quietbit._files import write_json
from quietbit.errors import QuietbitError
from quietbit_lab.report.registry import registry_entry, render_entry, save_entry, todo_fields
from quietbit_lab.report.runs import read_placed_runs
from refusals import refuses

yaml = pytest.importorskip("yaml")

# The registry's template: what it calls required, and its words where it lists them.
REQUIRED = {
    "basic": {
        "name",
        "data_curators",
        "description",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "publication_date",
    },
    "administrative": {"status", "registry_authors", "tier"},
}
KNOWN = {
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "number_of_privacy_units",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name",
        "model_name_details",
        "trust_assumptions",
        "actors",
        "release_type",
        "release_type_details",
        "data_source_type",
        "access_type",
        "access_type_details",
    },
    "implementation": {
        "preprocessing_and_hyperparameter_tuning",
        "mechanisms",
        "composition",
        "post_processing",
        "justification",
        "utility",
        "additional_information",
    },
}
MODELS = {
    "local": "Local",
    "central": "Central",
    "secure-aggregation": "Federated",
    "shuffled": "Shuffle",
}


def private_run():
    return next(run for run in runs() if run.mechanism == "imvu")


def with_guarantee(**parts):
    run = private_run()
    return changed(run, guarantee={**run.record["guarantee"], **parts})


def test_the_file_has_the_registry_s_fields_and_reads_back_as_written():
    entry = registry_entry(private_run())
    assert yaml.safe_load(render_entry(entry)) == entry
    assert set(entry) == {"url_slug", "deployment"}
    deployment = entry["deployment"]
    assert set(deployment) == set(REQUIRED) | set(KNOWN)
    for name, fields in REQUIRED.items():
        assert fields <= set(deployment[name])
    for name, fields in KNOWN.items():
        assert set(deployment[name]) == fields


@pytest.mark.parametrize("epsilon", [19.999797612314605, 3.61510001, 0.000123456, 8.0, 1234.567])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1.23456789e-7])
def test_epsilon_and_delta_are_rounded_up_and_read_as_numbers(epsilon, delta):
    entry = registry_entry(with_guarantee(epsilon_upper=epsilon, delta=delta))
    read = yaml.safe_load(render_entry(entry))["deployment"]
    parameters = read["privacy_loss"]["privacy_parameters"]
    assert epsilon <= parameters["epsilon"] <= epsilon * 1.0011
    assert delta <= parameters["delta"] <= delta * 1.0001
    assert read["dp_variant"]["variant_name"] == ("Pure DP" if delta == 0 else "Approximate DP")


@pytest.mark.parametrize("trust", list(MODELS))
@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_unit_neighbours_and_trust_are_the_guarantee_s(trust, unit, adjacency):
    run = with_guarantee(trust=trust, unit=unit, adjacency=adjacency)
    deployment = registry_entry(run)["deployment"]
    assert deployment["deployment_model"]["model_name"] == MODELS[trust]
    loss = deployment["privacy_loss"]
    assert loss["privacy_unit"].lower().startswith(unit)
    assert adjacency in loss["privacy_unit_details"].lower()
    assert run.record["guarantee"]["sentence"] in loss["privacy_parameters_details"]


def test_what_only_a_person_knows_is_a_line_to_fill_in():
    entry = registry_entry(private_run())
    fields = todo_fields(entry)
    for field in (
        "url_slug",
        "deployment.basic.name",
        "deployment.basic.data_curators.data_curator_name",
        "deployment.basic.publication_date",
        "deployment.privacy_loss.number_of_privacy_units",
        "deployment.implementation.justification",
        "deployment.administrative.registry_authors",
    ):
        assert field in fields
    known = {
        "deployment.dp_variant.variant_name",
        "deployment.privacy_loss.privacy_unit",
        "deployment.privacy_loss.privacy_parameters.epsilon",
        "deployment.deployment_model.model_name",
        "deployment.implementation.mechanisms",
        "deployment.implementation.composition",
    }
    assert not known & set(fields)


def test_a_simulation_says_that_it_protects_nobody():
    entry = registry_entry(private_run())
    notes = entry["deployment"]["implementation"]["additional_information"]
    assert "it was simulated" in notes
    assert "nobody: random bits come from a seed" in notes


def test_an_engine_s_report_gives_an_entry_with_its_nodes_and_its_filter(tmp_path):
    (run,) = read_placed_runs([saved(tmp_path)])
    deployment = registry_entry(run)["deployment"]
    assert deployment["privacy_loss"]["number_of_privacy_units"] == 1
    assert "filter" in deployment["implementation"]["composition"]
    assert "simulated" not in deployment["implementation"]["additional_information"]
    assert "75.0 % after 2 rounds" in deployment["implementation"]["utility"]
    epsilon = run.record["guarantee"]["epsilon_upper"]
    assert deployment["privacy_loss"]["privacy_parameters"]["epsilon"] >= epsilon


def test_a_run_without_a_guarantee_has_no_entry():
    with pytest.raises(QuietbitError, match="finite epsilon"):
        registry_entry(runs()[-1])
    with pytest.raises(QuietbitError, match="finite epsilon"):
        registry_entry(with_guarantee(epsilon_upper=None))


def test_a_file_that_is_not_yaml_is_refused(tmp_path):
    with refuses("end of the entry's file name", "entry.html"):
        save_entry(registry_entry(private_run()), tmp_path / "entry.html")


def test_the_command_writes_the_entry_of_one_run(capsys, tmp_path):
    record = tmp_path / "run.json"
    write_json(record, dict(private_run().record))
    out = tmp_path / "entry.yaml"
    facts = shell(capsys, "report", record, "--registry", "--out", out, "--json").json
    assert facts["saved"] == str(out)
    assert "deployment.basic.name" in facts["todo"]
    read = yaml.safe_load(out.read_text())
    parameters = read["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {"epsilon": facts["epsilon_upper"], "delta": facts["delta"]}
    second = tmp_path / "second.json"
    write_json(second, dict(runs()[0].record))
    result = shell(capsys, "report", record, second, "--registry", "--out", out)
    assert_refused(result, "runs of one entry")
    result = shell(capsys, "report", record, "--registry", "--out", tmp_path / "entry.html")
    assert_refused(result, "file name")
