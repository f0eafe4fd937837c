"""A catalogue of what people get wrong: each is one error that says what and where, before anything is done."""

import struct
from typing import Any, NamedTuple

import pytest
import torch

from gradsieve.errors import GradsieveError, InputError
from gradsieve.training.loop import train
from gradsieve.training.run import make_run

GOOD_ROWS = [f"{i % 7},{i * i % 11},{i % 3 + i % 5}" for i in range(40)]


def table(*lines, header="a,b,y"):
    """A CSV file whose last rows are ``lines``."""
    return {"table.csv": "\n".join([header, *GOOD_ROWS, *lines]) + "\n"}


def idx(shape, content):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + content


def mnist(**changes):
    """Two images to train on and one to test on, in MNIST's files."""
    files = {
        "train-images-idx3-ubyte": idx((2, 2, 2), bytes(8)),
        "train-labels-idx1-ubyte": idx((2,), bytes([3, 4])),
        "t10k-images-idx3-ubyte": idx((1, 2, 2), bytes(4)),
        "t10k-labels-idx1-ubyte": idx((1,), bytes([3])),
    }
    return files | {name.replace("_", "-"): content for name, content in changes.items()}


class Case(NamedTuple):
    """Settings, the words that the error must say, and files for ``data_dir``."""

    settings: dict[str, Any]
    words: list[str]
    files: dict[str, str | bytes] | None = None


SMALL = {"data": "landmarks", "data_options": {"train": 16, "test": 4, "size": 16}}
FILE = {"data": "table", "method": "standard", "data_dir": "table.csv"}
CLASSES = {**FILE, "data_options": {"task": "classification"}}
BATCHNORM = {"hidden": [8], "norm": "batch"}

CASES = {
    # Names.
    "no such data": Case({"data": "digitz"}, ["data set 'digitz'", "Did you mean 'digits'"]),
    "no such method": Case({"method": "prl_l"}, ["method 'prl_l'", "Did you mean 'prl-l'"]),
    "no such model": Case({"model": "resnet"}, ["model 'resnet'", "resnet32"]),
    "no such corruption": Case({"corruption": "pairflop", "rate": 0.1}, ["corruption 'pairflop'", "pairflip"]),
    "no such schedule": Case({"schedule": "rump"}, ["schedule 'rump'", "Did you mean 'ramp'"]),
    "no such module": Case({"schedule": "nowhere:f"}, ["nowhere:f", "cannot be imported"]),
    "no such function": Case({"schedule": "math:nothing"}, ["math:nothing", "cannot be imported"]),
    **{
        f"pi as {name}": Case({name: "math:pi"}, ["'math:pi' is no", "it has no"])
        for name in ("data", "method", "model", "corruption")
    },
    "pi as schedule": Case({"schedule": "math:pi"}, ["schedule 'math:pi'", "must be a function"]),
    "a function as a method": Case({"method": "math:sqrt"}, ["'math:sqrt' is no method", "drops_rows"]),
    "a function of something else": Case({"schedule": "math:sqrt"}, ["math:sqrt", "T=1"]),
    "no such setting": Case({"batchsize": 3}, ["'batchsize'", "Did you mean 'batch_size'"]),
    # Rates.
    **{
        f"{name} {value}": Case({"corruption": "symmetric", "rate": 0.1, name: value}, [name, str(value)])
        for name in ("rate", "drop_rate")
        for value in (-0.1, 1.0, 1, 2.5, float("nan"), float("inf"), "half")
    },
    "a rate of nothing": Case({"rate": 0.3}, ["rate is 0.3", "corruption is 'none'"]),
    "nothing would stay": Case({"batch_size": 4, "drop_rate": 0.8}, ["drop_rate=0.8", "batch of 4"]),
    # Sizes.
    **{
        f"{name} {value}": Case({name: value}, [f"{name} is {value}"])
        for name, values in {"epochs": [0, -1, 1.5], "batch_size": [0, -3, 2.5], "ramp": [-1, 0.5]}.items()
        for value in values
    },
    "batches of one for prl-l": Case({"batch_size": 1}, ["batch_size is 1", "prl-l", "at least 2"]),
    "batches of one for BatchNorm": Case(
        {"method": "standard", "batch_size": 1, "model_options": BATCHNORM},
        ["batch_size=1", "BatchNorm", "model_options={'norm': 'group'}"],
    ),
    "one kept row for BatchNorm": Case(
        {"batch_size": 4, "drop_rate": 0.7, "ramp": 0, "model_options": BATCHNORM},
        ["drop_rate=0.7", "batch_size=4", "BatchNorm", "model_options={'norm': 'group'}"],
    ),
    "one best row for BatchNorm": Case(
        {"method": "min-sgd", "method_options": {"passes": "reforward"}, "model_options": BATCHNORM}, ["BatchNorm"]
    ),
    **{
        f"learning_rate {value}": Case({"learning_rate": value}, ["learning_rate", str(value)])
        for value in (0, -1e-3, float("nan"), float("inf"), "fast")
    },
    "a seed in words": Case({"seed": "lucky"}, ["seed is 'lucky'"]),
    # Choices.
    "decay": Case({"decay": "cosine"}, ["decay is 'cosine'", "constant, linear"]),
    "preset": Case({"preset": "best"}, ["preset is 'best'", "authors, proper"]),
    "precision": Case({"precision": "fp8"}, ["precision is 'fp8'", "bf16"]),
    "schedule_unit": Case({"schedule_unit": "hour"}, ["schedule_unit is 'hour'", "epoch, step"]),
    **{
        f"device {name}": Case({"device": name}, [f"device='{name}'", "cannot be used here"])
        for name in ("tpu", "meta", "cuda:99", "", "gpu")
    },
    # Methods and corruptions for another task.
    "huber for classes": Case({"method": "huber"}, ["huber", "regression", "Methods for classification", "prl-l"]),
    "bootstrap for points": Case({**SMALL, "method": "bootstrap"}, ["bootstrap", "Methods for regression", "prl-g"]),
    "decouple for points": Case({**SMALL, "method": "decouple"}, ["decouple", "Methods for regression"]),
    "signflip for classes": Case({"corruption": "signflip", "rate": 0.1}, ["'signflip'", "symmetric"]),
    "symmetric for points": Case({**SMALL, "corruption": "symmetric", "rate": 0.1}, ["'symmetric'", "linadv"]),
    "balanced points": Case({**SMALL, "method_options": {"balanced": True}}, ["balanced", "no classes"]),
    "pairflip of one column": Case({**FILE, "corruption": "pairflip", "rate": 0.1}, ["pairflip", "only one"], table()),
    # Options.
    "no such option of a method": Case({"method_options": {"scorring": "eval"}}, ["prl-l", "'scorring'", "'scoring'"]),
    "no such choice of an option": Case({"method_options": {"passes": "twice"}}, ["passes is 'twice'", "'reforward'"]),
    "crops of what is no image": Case({"augment": "crop-flip"}, ["augment is 'crop-flip'", "for images", "(64,)"]),
    "captured on a CPU": Case(
        {"engine": "captured", "device": "cpu"}, ["engine is 'captured'", "only CUDA has graphs"]
    ),
    "compiled decisions of the host": Case(
        {"method": "decouple", "compile": "on"}, ["compile is 'on'", "decouple decides on the host"]
    ),
    "no such engine": Case({"engine": "fast"}, ["engine is 'fast'", "plain"]),
    "no such way to compile": Case({"compile": "yes"}, ["compile is 'yes'", "on"]),
    "prl-g in one pass over BatchNorm": Case(
        {"method": "prl-g", "method_options": {"passes": "index"}, "model_options": {"norm": "batch"}},
        ["passes is 'index'", "BatchNorm"],
    ),
    "co-teaching on the whole set": Case({"method": "co-teaching", "method_options": {"level": "data"}}, ["level"]),
    "balanced in words": Case({"method_options": {"balanced": "yes"}}, ["balanced is 'yes'", "True or False"]),
    **{
        f"{method} {option} {value}": Case(
            {"method": method, "method_options": {option: value}, **(SMALL if method == "huber" else {})},
            [f"{option} is {value!r}"],
        )
        for method, option, values in [
            ("normclip", "norm", [0, -1, "much", True]),
            ("ignormclip", "norm", [0, -1, "much"]),
            ("huber", "delta", [0, -1, "much"]),
            ("bootstrap", "trust", [-0.1, 1.1, "much"]),
            ("min-sgd", "group", [-1, 1.5, "all"]),
            ("sever", "iterations", [-1, 1.5]),
        ]
        for value in values
    },
    "options that cannot be saved": Case({"method_options": {"x": object()}}, ["method_options", "plain values"]),
    "no such option of a model": Case({"model_options": {"hiden": [8]}}, ["mlp", "'hiden'", "'hidden'"]),
    "layers in words": Case({"model_options": {"hidden": "many"}}, ["mlp", "hidden", "many"]),
    "one layer, not listed": Case({"model_options": {"hidden": 8}}, ["mlp", "hidden"]),
    "a negative layer": Case({"model_options": {"hidden": [-8]}}, ["mlp", "-8"]),
    "no such norm": Case({"model_options": {"norm": "layer"}}, ["norm is 'layer'", "batch, group, none"]),
    "a width in words": Case({**SMALL, "model_options": {"width": "wide"}}, ["landmark-cnn", "wide"]),
    "no width": Case({**SMALL, "model_options": {"width": 0}}, ["width is 0"]),
    "images wanted": Case({"model": "cnn9"}, ["cnn9", "(64,)", "mlp"]),
    "larger images wanted": Case({**SMALL, "model": "cnn9"}, ["cnn9", "28x28", "16x16"]),
    "no such option of the data": Case({"data_options": {"rows": 3}}, ["data option 'rows'", "none"]),
    "a misspelt option of the data": Case({"data": "landmarks", "data_options": {"tran": 3}}, ["'tran'", "'train'"]),
    **{
        f"landmarks {option} {value}": Case({"data": "landmarks", "data_options": {option: value}}, [f"{option} is"])
        for option, values in {"train": [1, 0, "all", 2.5, True], "test": [0, -1], "size": [8, "big"]}.items()
        for value in values
    },
    # Files that are not there, or not what they should be.
    "no folder given": Case({"data": "table"}, ["table", "no folder was given", ".csv"]),
    "no such folder": Case({"data": "table", "data_dir": "nowhere"}, ["no folder", "nowhere", ".csv"], {}),
    "no table in it": Case({"data": "table", "data_dir": ""}, ["*.csv", "must hold"], {"notes.txt": "x"}),
    "two tables in it": Case({"data": "table", "data_dir": ""}, ["2 .csv files", "a.csv"], {"a.csv": "", "b.csv": ""}),
    **{
        f"no {data}": Case({"data": data, "data_dir": ""}, [data, "must hold", file], {"notes.txt": "x"})
        for data, file in {"cifar10": "batch", "cifar100": "train", "mnist": "ubyte", "celeba": "list"}.items()
    },
    "an empty table": Case(FILE, ["table.csv", "first line"], {"table.csv": ""}),
    "a table of bytes": Case(FILE, ["table.csv", "UTF-8"], {"table.csv": b"\xff\xfe\x00\x01"}),
    "a table without a header": Case(FILE, ["table.csv", "column names"], table(header="1,2,3")),
    "a column twice": Case(FILE, ["table.csv", "names 2 columns 'a'"], table(header="a,a,y")),
    "a table of four rows": Case(FILE, ["table.csv", "4 rows"], {"table.csv": "a,y\n" + "1,2\n" * 4}),
    "a short row": Case(FILE, ["table.csv, line 42", "2 cells"], table("1,2")),
    **{
        f"{value} as an {where}": Case(FILE, ["table.csv, line 42", f"column {column}", "finite number"], table(line))
        for value in ("nan", "inf", "-inf", "1e999", "word", "")
        for where, column, line in [("input", "b", f"1,{value},3"), ("target", "y", f"1,2,{value}")]
    },
    "a constant target": Case(FILE, ["target y", "all 8 training rows"], {"table.csv": "a,y\n" + "1,2\n3,2\n" * 5}),
    "no such target": Case({**FILE, "data_options": {"target": "z"}}, ["target", "column 'z'"], table()),
    "no such column to ignore": Case({**FILE, "data_options": {"ignore": "c"}}, ["ignore", "column 'c'"], table()),
    "a target by number": Case({**FILE, "data_options": {"target": 3}}, ["target is 3", "text"], table()),
    "no inputs left": Case({**FILE, "data_options": {"ignore": "a,b"}}, ["leave no inputs"], table()),
    "no such task": Case({**FILE, "data_options": {"task": "guessing"}}, ["task", "'guessing'"], table()),
    "a row without a class": Case(CLASSES, ["table.csv, line 42", "column y", "no class"], table("1,2,")),
    "classes that are numbers": Case(
        {**FILE, "data_options": {"task": "classification", "target": "y"}},
        ["column y", "not a set of classes"],
        {"table.csv": "a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(40))},
    ),
    "two targets as classes": Case(
        {**FILE, "data_options": {"task": "classification", "target": "b,y"}}, ["target names 2 columns"], table()
    ),
    "a label out of range": Case(
        {"data": "mnist", "data_dir": ""},
        ["train-labels-idx1-ubyte, row 1, is 12", "0 to 9"],
        mnist(train_labels_idx1_ubyte=idx((2,), bytes([3, 12]))),
    ),
    "an image without a label": Case(
        {"data": "mnist", "data_dir": ""}, ["2 images", "1 labels"], mnist(train_labels_idx1_ubyte=idx((1,), b"\3"))
    ),
    "half a file": Case(
        {"data": "mnist", "data_dir": ""},
        ["promises 8", "holds 3"],
        mnist(train_images_idx3_ubyte=idx((2, 2, 2), b"123")),
    ),
    "not the file it says": Case(
        {"data": "mnist", "data_dir": ""}, ["not an IDX file"], mnist(train_images_idx3_ubyte=b"PK\3\4" + bytes(40))
    ),
}


def make(case, tmp_path):
    """The run of a case, with its files in a folder that ``data_dir`` is below."""
    settings = {"data": "digits", "method": "prl-l", "epochs": 1, **case.settings}
    if case.files is not None:
        (tmp_path / "data").mkdir()
        for name, content in case.files.items():
            (tmp_path / "data" / name).write_bytes(content.encode() if isinstance(content, str) else content)
        settings["data_dir"] = str(tmp_path / "data" / settings["data_dir"])
    return make_run(**settings)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_mistake_is_one_error_that_names_it_and_leaves_nothing_behind(case, tmp_path):
    with pytest.raises(GradsieveError) as caught:
        train(make(case, tmp_path), tmp_path / "run")
    said = str(caught.value)
    assert isinstance(caught.value, InputError)
    assert [word for word in case.words if word not in said] == [], said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_a_begun_run_leaves_its_folder_usable(tmp_path, digits, stop_at):
    """The data went bad between a stop and the resume; once it is repaired, the run goes on."""
    path = tmp_path / "table.csv"
    path.write_text(table()["table.csv"])
    run = make_run(**FILE | {"data_dir": path}, epochs=3, batch_size=8)
    folder = stop_at(run, tmp_path / "run", 5)
    path.write_text(table("1,nan,2")["table.csv"])
    with pytest.raises(InputError, match=r"table\.csv, line 42"):
        train(run, tmp_path / "run", resume=True)
    assert folder.load_state()[1]["step"] == 1
    path.write_text(table()["table.csv"])
    resumed, whole = train(run, tmp_path / "run", resume=True), train(run)
    assert all(resumed.weights[name].equal(tensor) for name, tensor in whole.weights.items())


UNUSUAL = {
    "batches of one": Case({"method": "standard", "batch_size": 1, **SMALL}, []),
    "batches of one with BatchNorm over positions": Case(
        {**SMALL, "method": "standard", "batch_size": 1, "model_options": {"norm": "batch", "width": 0.1}}, []
    ),
    "batches of two": Case({**SMALL, "method": "prl-g", "batch_size": 2, "corruption": "signflip", "rate": 0.4}, []),
    "one batch, larger than the set": Case({**SMALL, "batch_size": 10_000}, []),
    "two rows": Case({"data": "landmarks", "data_options": {"train": 2, "test": 1, "size": 16}}, []),
    "the best row of each batch, with BatchNorm": Case({"method": "min-sgd", "model_options": BATCHNORM}, []),
    "no hidden layer": Case({"model_options": {"hidden": []}}, []),
    "numbers that hardly fit": Case(FILE, [], table("1e300,-1e300,3", "1,2,3")),
    "targets that hardly fit": Case(FILE, [], table("1,2,1e30")),
    "a constant input": Case(FILE, [], {"table.csv": "a,b,y\n" + "".join(f"1,{i},{i % 3}\n" for i in range(10))}),
    "classes in words": Case(CLASSES, [], {"table.csv": "a,y\n" + "1,yes\n2,no\n" * 10}),
    "a class that only the test rows have": Case(
        CLASSES | {"corruption": "symmetric", "rate": 0.2, "method": "prl-l"},
        [],
        {"table.csv": "a,y\n" + "".join(f"{i},{'rare' if i == 3 else 0}\n" for i in range(20))},
    ),
    "three images": Case({"data": "mnist", "data_dir": ""}, [], mnist()),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in UNUSUAL.items()])
def test_what_is_unusual_but_right_trains_to_finite_weights(case, tmp_path):
    result = train(make(case, tmp_path), tmp_path / "run")
    assert all(tensor.isfinite().all() for tensor in result.weights.values())
    assert result.ledger.judged.sum() > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_error(digits, tmp_path):
    with pytest.raises(InputError, match="device='cuda' cannot be used here"):
        train(digits(device="cuda"), tmp_path / "run")


def test_a_class_that_there_is_not(write_module):
    """Of a corruption of the user's own: on a GPU it would come to light in the midst of a step."""
    head = "from gradsieve.corruptions.corruption import serves\n\n\n@serves('classification')\n"
    write_module("mine", f"{head}def far(inputs, targets, rate, generator):\n    return targets + 100\n")
    with pytest.raises(
        InputError, match=r"corruption 'mine:far' gives row 0 the class 1\d\d, but digits has 10 \(0 to 9"
    ):
        train(make_run("digits", corruption="mine:far", rate=0.1, epochs=1))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("narrow", r"'mine:narrow' cannot read one row of digits, a tensor of shape \(1, 64\) "),
        ("none", "gives None"),
    ],
)
def test_a_model_of_ones_own_that_cannot_work(name, says, write_module):
    write_module(
        "mine",
        """
from torch import nn
def narrow(input_shape, outputs): return nn.Linear(3, outputs)
def none(input_shape, outputs): nn.Linear(64, outputs)
""",
    )
    with pytest.raises(InputError, match=says):
        train(make_run("digits", model=f"mine:{name}", epochs=1))


def test_a_model_of_ones_own_that_gives_the_same_layers_again(write_module):
    """Two networks, or the runs of a grid, would train them together. What is frozen may be shared."""
    write_module(
        "mine",
        """
from torch import nn
BODY = nn.Linear(64, 8)
def shared(input_shape, outputs): return nn.Sequential(BODY, nn.Linear(8, outputs))
def frozen(input_shape, outputs): return nn.Sequential(BODY.requires_grad_(False), nn.Linear(8, outputs))
""",
    )
    with pytest.raises(
        InputError, match=r"model 'mine:shared' gives a network with the parameter 0\.weight of one that"
    ):
        train(make_run("digits", "co-prl-l", model="mine:shared", epochs=1))
    for _ in range(2):
        assert train(make_run("digits", "co-prl-l", model="mine:frozen", epochs=1)).last > 0
