"""The code of a user's own parts belongs to a run: edited, it is another run."""

import json

import pytest

from gradsieve.errors import CheckpointError, RunFolderError
from gradsieve.registry import source_path, sources
from gradsieve.training.command import train_command
from gradsieve.training.loop import train
from gradsieve.training.result import load_result
from gradsieve.training.run import Run

SCORE = "from gradsieve.methods.prl_l import PRLL\n\n\nclass Mine(PRLL):\n    pass\n"
EDITED = SCORE.replace("    pass", "    def scores(self, outputs, targets):\n        return None")
NETWORK = "from torch import nn\n\n\ndef network(shape, outputs):\n    return nn.Linear(shape[-1], outputs)\n"


def test_parts_that_we_bring_are_not_on_record(digits):
    """Configurations, records and states of runs without code of the user's are what they always were."""
    assert digits().sources == {}
    assert "sources" not in digits().to_json()
    assert sources("gradsieve.methods.prl_l:PRLL", "prl-l", None) == {}


def test_the_code_of_your_own_parts_is_on_record(digits, write_module):
    write_module("mine", SCORE)
    run = digits("mine:Mine")
    (sha256,) = run.sources.values()
    assert run.to_json()["sources"] == {"mine:Mine": sha256}
    assert Run.from_json(run.to_json()) == run
    assert "sources" not in train_command(run)
    with open(source_path("mine"), "a") as file:
        file.write("# an afterthought\n")
    assert run.sources == {"mine:Mine": sha256}, "what counts is the code that this process has imported"
    write_module("mine", SCORE + "# an afterthought\n")
    assert run.sources != {"mine:Mine": sha256}
    write_module("mine", SCORE)
    assert run.sources == {"mine:Mine": sha256}


def test_a_part_that_is_passed_on_counts_by_the_file_that_defines_it(write_module):
    write_module("inner", SCORE)
    write_module("outer", "from inner import Mine\n")
    before = sources("outer:Mine")
    write_module("inner", EDITED)
    write_module("outer", "from inner import Mine\n")
    assert sources("outer:Mine") != before


def test_what_has_no_file_is_known_by_its_text(monkeypatch):
    """As in a notebook, where nothing can be read but what was typed, or not even that."""
    import __main__

    monkeypatch.delattr(__main__, "__file__", raising=False)
    monkeypatch.setattr(__main__, "unheard_of", type("X", (), {"__module__": "__main__"}), raising=False)
    assert len(sources("__main__:unheard_of")["__main__:unheard_of"]) == 64


@pytest.mark.parametrize("kind", ["begun", "finished"])
def test_a_run_does_not_go_on_under_other_code(digits, stop_at, write_module, tmp_path, kind):
    write_module("mine", SCORE)
    run = digits("mine:Mine", epochs=1)
    if kind == "begun":
        stop_at(run, tmp_path / "run", 7)
    else:
        train(run, tmp_path / "run")
    write_module("mine", EDITED)
    with pytest.raises(
        RunFolderError, match=r"holds a run of other code: mine\.py has changed since\. Put the code back"
    ):
        train(run, tmp_path / "run", resume=True)
    write_module("mine", SCORE)
    assert train(run, tmp_path / "run", resume=True).summary["run"]["sources"] == run.sources


def test_another_setting_is_named_before_other_code(digits, write_module, tmp_path):
    write_module("mine", SCORE)
    train(digits("mine:Mine", epochs=1), tmp_path / "run")
    write_module("mine", EDITED)
    with pytest.raises(RunFolderError, match=r"holds another run \(epochs is 1 there, 2 here\)"):
        train(digits("mine:Mine", epochs=2), tmp_path / "run", resume=True)


def test_a_folder_from_before_code_was_on_record_is_refused(digits, write_module, tmp_path):
    write_module("mine", SCORE)
    run = digits("mine:Mine", epochs=1)
    train(run, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["sources"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match=r"the code of mine\.py was not yet on record"):
        train(run, tmp_path / "run", resume=True)


def test_weights_are_not_put_into_a_network_of_other_code(digits, write_module, tmp_path):
    write_module("net", NETWORK)
    train(digits(model="net:network", model_options={}, epochs=1), tmp_path / "run")
    assert len(load_result(tmp_path / "run").networks()) == 1
    write_module("net", NETWORK + "# another\n")
    with pytest.raises(CheckpointError, match=r"net\.py has changed since"):
        load_result(tmp_path / "run").networks()
