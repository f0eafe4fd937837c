"""What the adapters add to the loss: the time, the log, gradient accumulation, and errors."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve import RobustLoss
from gradsieve.errors import CheckpointError, InputError

EXTRAS = {"lightning": "lightning", "huggingface": "hf", "skorch": "skorch"}
LIBRARIES = {"lightning": "lightning", "huggingface": "transformers", "skorch": "skorch"}


@pytest.mark.parametrize("adapter", EXTRAS)
def test_without_the_library_the_error_names_the_extra(adapter):
    code = f"import sys; sys.modules['{LIBRARIES[adapter]}'] = None; import gradsieve.adapters.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert f'pip install "gradsieve[{EXTRAS[adapter]}]"' in done.stderr


def test_importing_the_package_imports_no_framework():
    code = "import sys, gradsieve; gradsieve.RobustLoss; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert not {"lightning", "transformers", "skorch", "accelerate"} & set(loaded.stdout.split())


@pytest.fixture
def huggingface():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install gradsieve[hf]")
    from gradsieve.adapters import huggingface

    return huggingface


def test_micro_batches_of_the_hugging_face_trainer_add_up_to_the_mean_over_all_labels(huggingface):
    torch.manual_seed(0)
    logits, labels = torch.randn(12, 5), torch.randint(5, (12,))
    labels[3] = -100
    compute = huggingface.trainer_loss(RobustLoss(F.cross_entropy, 0.0))
    items = (labels != -100).sum()
    parts = [compute({"logits": logits[rows]}, labels[rows], items) for rows in (slice(0, 4), slice(4, 12))]
    torch.testing.assert_close(sum(parts), F.cross_entropy(logits, labels))


def test_the_hugging_face_loss_is_plain_where_there_are_no_gradients(huggingface):
    from transformers.modeling_outputs import SequenceClassifierOutput

    logits, labels = torch.randn(12, 5), torch.randint(5, (12,))
    compute = huggingface.trainer_loss(RobustLoss(F.cross_entropy, 0.5))
    with torch.no_grad():
        assert compute(SequenceClassifierOutput(logits=logits), labels) == F.cross_entropy(logits, labels)
    assert compute((logits,), labels) < F.cross_entropy(logits, labels)


def test_labels_of_the_next_token_are_shifted(huggingface):
    logits, labels = torch.randn(2, 6, 5), torch.randint(5, (2, 6))
    compute = huggingface.trainer_loss(RobustLoss(F.cross_entropy, 0.0, class_dim=-1), shift_labels=True)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(compute({"logits": logits}, labels, torch.tensor(10)), expected)


def test_a_model_of_the_next_token_needs_labels_that_are_shifted(huggingface):
    """Otherwise the model learns to repeat its input, with a loss near 0."""
    import transformers

    config = transformers.GPT2Config(vocab_size=7, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(7, (3, 8))
    outputs, robust = model(input_ids=tokens), RobustLoss(F.cross_entropy, 0.0, class_dim=-1)
    with pytest.raises(InputError, match=r"predicts the next token.*shift_labels=True.*shift_labels=False"):
        huggingface.trainer_loss(robust)(outputs, tokens)
    own = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(huggingface.trainer_loss(robust, shift_labels=True)(outputs, tokens), own)
    ahead = F.pad(tokens[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(huggingface.trainer_loss(robust, shift_labels=False)(outputs, ahead), own)


def test_labels_of_a_model_that_predicts_the_very_tokens_are_not_shifted(huggingface):
    import transformers

    config = transformers.BertConfig(
        vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=4
    )
    tokens, robust = torch.randint(4, (3, 8)), RobustLoss(F.cross_entropy, 0.0, class_dim=-1)
    for kind in (transformers.BertForTokenClassification, transformers.BertForMaskedLM):
        model = kind(config).eval()
        own = model(input_ids=tokens, labels=tokens)
        torch.testing.assert_close(huggingface.trainer_loss(robust)(own, tokens), own.loss)


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        ({"logits": torch.ones(2, 3)}, None, r"no column 'labels', .* \(label_names does not help\)"),
        ({"logits": torch.ones(2, 3)}, [{"boxes": torch.ones(1, 4)}], r"labels is a list, but must be one tensor"),
        ({"loss": 1}, torch.zeros(2), "without logits"),
    ],
)
def test_a_batch_without_labels_or_a_model_without_logits_is_refused(huggingface, outputs, labels, message):
    with pytest.raises(InputError, match=message):
        huggingface.trainer_loss(RobustLoss(F.cross_entropy, 0.3))(outputs, labels)


class Named(NamedTuple):
    hidden: torch.Tensor
    logits: torch.Tensor


def test_logits_are_found_by_name_before_they_are_found_by_place(huggingface):
    logits, hidden = torch.randn(2, 3), torch.randn(2, 8)
    for outputs in (
        logits,
        {"logits": logits},
        SimpleNamespace(logits=logits),
        Named(hidden, logits),
        (logits, hidden),
    ):
        assert huggingface.logits_of(outputs) is logits
    with pytest.raises(InputError, match="without logits"):
        huggingface.logits_of((torch.tensor(0.5), logits))  # a loss comes first


@pytest.mark.parametrize(("epoch", "T"), [(None, 1), (0, 1), (0.9999999, 2), (1.5, 2), (2.0, 3)])
def test_a_resumed_hugging_face_run_goes_on_at_its_epoch(huggingface, epoch, T):
    robust = RobustLoss(F.cross_entropy, 0.3, ramp=10)
    huggingface.RobustCallback(robust).on_epoch_begin(None, SimpleNamespace(epoch=epoch), None)
    assert robust.T == T


def test_a_lightning_module_without_a_robust_loss_is_refused():
    pytest.importorskip("lightning", reason="lightning is not installed: pip install gradsieve[lightning]")
    from lightning.pytorch import LightningModule

    from gradsieve.adapters.lightning import RobustCallback, robust_losses

    module = LightningModule()
    module.criterion = nn.MSELoss()
    with pytest.raises(InputError, match="has no RobustLoss"):
        RobustCallback().on_fit_start(None, module)
    with pytest.raises(InputError, match="every is 'epochs', but must be 'epoch' or 'step'"):
        RobustCallback("epochs")
    module.criterion, module.other = RobustLoss(F.mse_loss, 0.1), RobustLoss(F.l1_loss, 0.2)
    assert [prefix for prefix, _ in robust_losses(module)] == ["criterion.", "other."]


def test_lightning_batches_may_be_objects_of_the_users():
    pytest.importorskip("lightning", reason="lightning is not installed: pip install gradsieve[lightning]")
    from lightning.pytorch import LightningModule, Trainer

    from gradsieve.adapters.lightning import RobustCallback

    class Batch:
        def __init__(self, rows):
            self.inputs, self.targets = torch.randn(len(rows), 4), torch.tensor(rows) % 3

        def to(self, device):
            return self

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.criterion = nn.Linear(4, 3), RobustLoss(F.cross_entropy, 0.5)

        def training_step(self, batch, batch_idx):
            return self.criterion(self.network(batch.inputs), batch.targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = torch.utils.data.DataLoader(range(11), batch_size=8, collate_fn=Batch)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[RobustCallback()], **quiet)
    trainer.fit(Module(), loader)
    assert trainer.callback_metrics["kept_share"].item() == pytest.approx((4 + 1) / 11)


def test_skorch_searches_over_the_drop_rate_and_scores_with_the_plain_loss():
    skorch = pytest.importorskip("skorch", reason="skorch is not installed: pip install gradsieve[skorch]")
    from sklearn.model_selection import GridSearchCV

    from gradsieve.adapters.skorch import RobustCallback

    torch.manual_seed(0)
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 3
    net = skorch.NeuralNetClassifier(
        nn.Linear(4, 3),
        criterion=RobustLoss,
        criterion__criterion=F.cross_entropy,
        criterion__drop_rate=0.2,
        max_epochs=2,
        batch_size=20,
        callbacks=[RobustCallback()],
        predict_nonlinearity=nn.Softmax(dim=-1),
        verbose=0,
    )
    search = GridSearchCV(net, {"criterion__drop_rate": [0.1, 0.3]}, cv=2, refit=True)
    search.fit(inputs.numpy(), labels.numpy())
    history = search.best_estimator_.history
    rate = search.best_params_["criterion__drop_rate"]
    assert history[:, "drop_rate"] == [rate] * 2
    assert "valid_loss" in history[-1]
    torch.testing.assert_close(torch.tensor(search.predict_proba(inputs.numpy())).sum(1), torch.ones(60))
    with pytest.raises(InputError, match="every is 'epochs'"):
        net.set_params(callbacks=[RobustCallback("epochs")]).fit(inputs.numpy(), labels.numpy())
    other = skorch.NeuralNetClassifier(nn.Linear(4, 3), callbacks=[RobustCallback()])
    with pytest.raises(InputError, match="the callback serves a RobustLoss"):
        other.fit(inputs.numpy(), labels.numpy())


@pytest.fixture
def skorch():
    return pytest.importorskip("skorch", reason="skorch is not installed: pip install gradsieve[skorch]")


def wrapped(kind, module, criterion, labels, **options):
    """A net of this kind, fitted to noise for an epoch."""
    from gradsieve.adapters.skorch import RobustCallback

    net = kind(
        module,
        criterion=RobustLoss(criterion, 0.2),
        callbacks=[RobustCallback()],
        max_epochs=1,
        train_split=None,
        verbose=0,
        **options,
    )
    return net.fit(torch.randn(30, 4), labels)


def test_skorch_that_would_guess_probabilities_is_told_of_the_argument(skorch):
    labels = torch.arange(30) % 3
    with pytest.warns(UserWarning, match=r"predict_nonlinearity=nn\.Softmax\(dim=-1\)"):
        wrapped(skorch.NeuralNetClassifier, nn.Linear(4, 3), nn.CrossEntropyLoss(), labels)
    with pytest.warns(UserWarning, match="criterion__criterion=F.cross_entropy"):
        wrapped(skorch.NeuralNetClassifier, nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), nn.NLLLoss(), labels)


def test_a_net_that_skorch_compiles_is_told_the_time_too(skorch):
    from gradsieve.adapters.skorch import RobustCallback

    net = skorch.NeuralNetClassifier(
        nn.Linear(4, 3),
        criterion=RobustLoss(F.cross_entropy, 0.4, ramp=2),
        callbacks=[RobustCallback()],
        max_epochs=2,
        train_split=None,
        predict_nonlinearity=nn.Softmax(dim=-1),
        compile=True,
        compile__backend="eager",
        verbose=0,
    )
    net.fit(torch.randn(30, 4), torch.arange(30) % 3)
    assert net.history[:, "drop_rate"] == pytest.approx([0.2, 0.4])


def test_a_binary_net_of_skorch_gives_probabilities_of_two_classes(skorch):
    from gradsieve.adapters.skorch import sigmoid_columns

    kind, labels = skorch.NeuralNetBinaryClassifier, (torch.arange(30) % 2).float()
    net = wrapped(
        kind, nn.Linear(4, 1), F.binary_cross_entropy_with_logits, labels, predict_nonlinearity=sigmoid_columns
    )
    inputs = torch.randn(5, 4)
    with torch.no_grad():
        second = net.module_(inputs).squeeze(1).sigmoid().numpy()
    assert net.predict_proba(inputs)[:, 1] == pytest.approx(second)
    assert net.predict(inputs).tolist() == (second > 0.5).tolist()


def test_smoothing_that_the_hugging_face_trainer_leaves_to_the_loss_is_named(huggingface):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    callback = huggingface.RobustCallback(RobustLoss(F.cross_entropy, 0.2))
    with pytest.warns(UserWarning, match=r"label_smoothing_factor=0\.1 is of no effect"):
        callback.on_train_begin(TrainingArguments(label_smoothing_factor=0.1), TrainerState(), TrainerControl())


class Model(nn.Module):
    """As the Hugging Face trainer takes it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs, labels=None):
        return {"logits": self.layer(inputs)}


@pytest.fixture
def make_trainer(huggingface, tmp_path):
    """A trainer of 16 rows in batches of 8, with plain steps."""
    import transformers

    def make(robust, callbacks=(), data=None, **arguments):
        settings = {
            "output_dir": str(tmp_path),
            "num_train_epochs": 1,
            "per_device_train_batch_size": 8,
            "train_sampling_strategy": "sequential",
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
        }
        model = Model()
        sgd = torch.optim.SGD(model.parameters(), 1.0)
        return transformers.Trainer(
            model,
            transformers.TrainingArguments(**{**settings, **arguments}),
            train_dataset=data or sixteen_rows(),
            optimizers=(sgd, torch.optim.lr_scheduler.ConstantLR(sgd, factor=1.0)),
            compute_loss_func=huggingface.trainer_loss(robust),
            callbacks=list(callbacks),
        )

    return make


def sixteen_rows(**columns):
    torch.manual_seed(1)
    columns = {"inputs": torch.randn(16, 4), "labels": torch.randint(3, (16,)), **columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(("reduction", "share"), [("mean", 0.5), ("sum", 1.0)])
def test_the_hugging_face_trainer_accumulates_trimmed_micro_batches(make_trainer, reduction, share):
    """Micro-batches add up to their mean, or to their sum if the criterion sums."""
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    trainer = make_trainer(RobustLoss(criterion, 0.25), gradient_accumulation_steps=2)
    trainer.train()
    robust, plain, rows = RobustLoss(criterion, 0.25), Model(), sixteen_rows()
    for part in (rows[:8], rows[8:]):
        inputs, labels = (torch.stack([row[name] for row in part]) for name in ("inputs", "labels"))
        (robust(plain.layer(inputs), labels) * share).backward()
    torch.testing.assert_close(trainer.model.layer.weight, plain.layer.weight - plain.layer.weight.grad)


class Stream(torch.utils.data.IterableDataset):
    """Rows whose number the trainer does not know."""

    def __iter__(self):
        return iter(sixteen_rows())


def test_the_hugging_face_trainer_tells_the_epochs_of_a_stream(huggingface, make_trainer):
    robust, times = RobustLoss(F.cross_entropy, 0.25, ramp=10), []
    robust.register_forward_hook(lambda loss, *_: times.append(loss.T))
    make_trainer(robust, [huggingface.RobustCallback(robust)], Stream(), max_steps=6).train()
    assert times == [1, 1, 2, 2, 3, 3]


NUMBERS = torch.arange(16).flip(0)


@pytest.mark.parametrize("columns", [{"remove_unused_columns": False}, {"label_names": ["labels", "row"]}])
def test_the_hugging_face_trainer_keeps_a_ledger(huggingface, make_trainer, columns):
    """Row numbers come in a column of the data set, and the model never sees them."""
    robust = RobustLoss(F.cross_entropy, 0.25, rows=16)
    callback = huggingface.RobustCallback(robust, row_column="row")
    trainer = make_trainer(robust, [callback], sixteen_rows(row=NUMBERS), **columns)
    if "label_names" not in columns:  # evaluation would take the numbers for labels
        trainer.evaluate(sixteen_rows(row=NUMBERS))
    trainer.train()
    alike, network, rows = RobustLoss(F.cross_entropy, 0.25, rows=16), Model(), sixteen_rows()
    sgd = torch.optim.SGD(network.parameters(), 1.0)
    for part in (slice(0, 8), slice(8, 16)):
        inputs, labels = (torch.stack([row[name] for row in rows[part]]) for name in ("inputs", "labels"))
        sgd.zero_grad()
        alike(network.layer(inputs), labels, rows=NUMBERS[part]).backward()
        sgd.step()
    for name, column in alike.ledger.tensors().items():
        torch.testing.assert_close(robust.ledger.tensors()[name], column)
    assert robust.ledger.judged.tolist() == [1] * 16
    trainer.predict(sixteen_rows(row=NUMBERS))


def test_a_resumed_hugging_face_run_ends_with_the_ledger_of_one_that_was_not_interrupted(
    huggingface, make_trainer, tmp_path
):
    def train(resume, robust, **options):
        callback, rows = huggingface.RobustCallback(robust, row_column="row"), sixteen_rows(row=NUMBERS)
        trainer = make_trainer(robust, [callback], rows, remove_unused_columns=False, num_train_epochs=2, **options)
        trainer.train(resume_from_checkpoint=resume)
        return robust

    def loss():
        return RobustLoss(F.cross_entropy, 0.25, rows=16)

    straight = train(None, loss(), save_strategy="steps", save_steps=3)
    checkpoint = str(tmp_path / "checkpoint-3")
    torch.testing.assert_close(train(checkpoint, loss()).ledger.tensors(), straight.ledger.tensors())
    state = Path(checkpoint, "robust_loss.safetensors")
    sound = state.read_bytes()
    for damaged in (sound[:-1], bytes([sound[0] ^ 1]) + sound[1:]):
        state.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"robust_loss\.safetensors is damaged.* Delete .*robust_loss\.json"):
            train(checkpoint, loss())
    state.write_bytes(sound)
    Path(checkpoint, "robust_loss.json").rename(tmp_path / "elsewhere.json")
    with pytest.warns(UserWarning, match="The ledger of a resumed run begins empty"):
        train(checkpoint, loss())
    own = loss()
    own.load_state_dict(safetensors.torch.load(sound))
    torch.testing.assert_close(train(checkpoint, own).ledger.tensors(), straight.ledger.tensors())


def test_what_the_hugging_face_loss_is_not_told_it_asks_for(huggingface, make_trainer):
    callback = huggingface.RobustCallback
    with pytest.raises(
        InputError, match=r"nobody tells the loss the time\. Add callbacks=\[RobustCallback\(robust\)\]"
    ):
        make_trainer(RobustLoss(F.cross_entropy, 0.25, ramp=5)).train()
    robust = RobustLoss(F.cross_entropy, 0.25, ramp=5)
    robust.at(1)  # as a callback of the user's would
    make_trainer(robust).train()
    robust = RobustLoss(F.cross_entropy, 0.25, rows=16)
    with pytest.raises(InputError, match="nobody tells it which rows it gets"):
        make_trainer(robust, [callback(robust)]).train()
    with pytest.raises(InputError, match="Pass remove_unused_columns=False"):
        make_trainer(robust, [callback(robust, row_column="row")], sixteen_rows(row=NUMBERS))
    later = make_trainer(robust, (), sixteen_rows(row=NUMBERS), remove_unused_columns=False)
    later.add_callback(callback(robust, row_column="row"))
    later.train()
    assert robust.ledger.judged.tolist() == [1] * 16


def test_one_output_of_a_hugging_face_model_may_have_labels_without_a_dimension_of_its_own(huggingface):
    torch.manual_seed(0)
    logits, labels = torch.rand(8, 1, requires_grad=True), torch.rand(8)
    robust = RobustLoss(F.mse_loss, 0.25)
    assert huggingface.trainer_loss(robust)({"logits": logits}, labels) == robust(logits.squeeze(1), labels)
