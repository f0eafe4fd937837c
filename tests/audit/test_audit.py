"""An audit of real digits and of a table: it finds the wrong rows, suggests the right ones, and cleans the data."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gradsieve import RobustClassifier, RobustRegressor, make_run, train
from gradsieve.audit import audit_estimator, audit_run, issue_mask, label_quality, ranked_issues
from gradsieve.audit.cautions import cautions
from gradsieve.audit.judging import Answers, judge
from gradsieve.audit.run import final_answers
from gradsieve.errors import InputError, RunFolderError
from gradsieve.training.setting import prepare


def test_wrong_labels_come_first_and_the_suggestion_is_right(digits):
    _, given, true, audit = digits
    is_wrong = given != true
    assert roc_auc_score(is_wrong, audit.suspicion) > 0.97
    assert is_wrong[audit.flagged].mean() > 0.9
    assert audit.flagged[is_wrong].mean() > 0.9
    assert (audit.suggested[audit.flagged] == true[audit.flagged]).mean() > 0.9
    assert audit.confidence is not None
    assert ((audit.confidence > 0.1) & (audit.confidence <= 1)).all()


def test_suspicion_rank_and_flag_agree(digits):
    *_, audit = digits
    order = np.argsort(audit.rank)
    assert sorted(audit.rank) == list(range(1, len(audit) + 1))
    assert (audit.dropped <= audit.seen).all()
    assert (audit.seen > 20).all()  # of 30 epochs; each leaves a few rows over
    assert audit.dropped[audit.flagged].mean() > 0.8 * audit.seen.mean()
    assert (np.diff(audit.suspicion[order]) <= 0).all()
    assert audit.flagged[order[: audit.flagged.sum()]].all()
    assert (audit.suspicion[audit.flagged] >= 0.5).all()
    assert (audit.suspicion[~audit.flagged] <= 0.5).all()
    assert audit.rate == audit.flagged.mean()


def test_classes_are_confused_with_the_next(digits):
    *_, audit = digits
    found = audit.by_class()
    assert [each["name"] for each in found] == [str(number) for number in range(10)]
    assert sum(each["rows"] for each in found) == len(audit)
    assert sum(each["flagged"] for each in found) == audit.flagged.sum()
    # A label that was made the next one is, most often, the one before.
    assert all(next(iter(each["suggested"])) == str((number - 1) % 10) for number, each in enumerate(found))
    assert not any(each["name"] in each["suggested"] for each in found)  # nobody confuses a class with itself
    assert not any(each["warning"] for each in found)


def test_few_epochs_flag_little_and_say_that_they_are_few():
    """300 clean digits: what ten epochs do not fit is not yet wrong."""
    X, y = (each[:300] for each in load_digits(return_X_y=True))
    short, longer = (
        audit_estimator(RobustClassifier(drop_rate="learn", epochs=epochs, random_state=0).fit(X, y), X, y)
        for epochs in (10, 50)
    )
    assert "too short" in short.warnings[0]
    assert short.rate < 0.15
    assert not longer.warnings
    assert longer.rate < 0.03


def test_no_more_is_flagged_than_seemed_wrong_on_the_way(digits):
    X, given, *_ = digits
    fitted = RobustClassifier(drop_rate="learn", epochs=20, random_state=0).fit(X, given)
    audit = audit_estimator(fitted, X, given)
    beyond = (audit.mean_score > np.sqrt(2) / 2).sum()
    assert audit.flagged.sum() == min(beyond, round(fitted.drop_rate_ * len(X)))


def test_a_minority_does_not_vanish_silently():
    """A rare class that looks like another is dropped row by row, and the audit says so."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 2))
    y = (X[:, 0] > 0).astype(int)
    y[:12] = 2
    audit = audit_estimator(RobustClassifier(drop_rate=0.1, epochs=20, random_state=0).fit(X, y), X, y)
    rare = audit.by_class()[2]
    assert rare["kept_share"] < 0.4
    assert "rare and not wrong" in rare["warning"]


def test_wrong_targets_come_first_with_outputs_and_kinds(table):
    _, _, true, audit = table
    is_wrong = np.arange(600) < 120
    assert audit.names == ("y0", "y1", "y2")
    assert roc_auc_score(is_wrong, audit.suspicion) > 0.97
    assert is_wrong[audit.flagged].mean() > 0.9
    assert audit.flagged[is_wrong].mean() > 0.8
    assert np.abs(audit.suggested - true)[audit.flagged].mean() < 0.5
    assert (audit.kind[:60][audit.flagged[:60]] == "sign flipped").mean() > 0.8
    assert (audit.kind[60:120][audit.flagged[60:120]] == "random").mean() > 0.8
    assert (audit.kind[~audit.flagged] == "").all()
    assert audit.off[is_wrong & audit.flagged].any(1).all()


def test_one_output_that_is_off_is_named():
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 3))
    y = X @ random.normal(size=(3, 4))
    y[:50, 2] += 4
    audit = audit_estimator(RobustRegressor(drop_rate=0.15, epochs=60, random_state=0).fit(X, y), X, y)
    wrong = audit.flagged & (np.arange(500) < 50)
    assert wrong.sum() >= 45
    assert audit.off[wrong].mean(0)[2] > 0.95
    assert audit.off[wrong].mean(0)[[0, 1, 3]].max() < 0.2


def test_an_audit_of_a_run_is_of_what_the_run_saw(tmp_path):
    run = make_run("digits", "prl-l", corruption="symmetric", rate=0.2, epochs=15, device="cpu")
    result = train(run, tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    setting = prepare(run)
    assert (audit.given == setting.data.train.targets.numpy()).all()
    assert (audit.seen == result.ledger.judged.numpy()).all()
    assert (audit.dropped == result.ledger.dropped.numpy()).all()
    assert np.array_equal(audit.mean_score, result.ledger.mean_score.double().numpy())
    assert np.array_equal(audit.suggested, final_answers(setting, result.weights).suggested)
    assert roc_auc_score(setting.is_corrupted.numpy(), audit.suspicion) > 0.95
    assert audit.run == "run"
    assert audit.names == tuple(str(number) for number in range(10))
    with torch.inference_mode():
        assert np.array_equal(audit_run(tmp_path / "run").suggested, audit.suggested)


def test_rows_that_have_moved_since_the_training_are_not_audited(tmp_path):
    """Scores of the rows as they were would be said of the rows as they are."""
    file = tmp_path / "rows.csv"
    random = np.random.default_rng(0)
    lines = [f"{value:.3f},{'no' if value < 0 else 'yes'}\n" for value in random.normal(size=60)]
    file.write_text("a,b\n" + "".join(lines))
    run = make_run("table", "prl-l", epochs=1, data_dir=str(file), data_options={"task": "classification"})
    train(run, tmp_path / "run")
    before = audit_run(tmp_path / "run")
    for now, counted in ((sorted(lines), ""), (lines[:50], r" \(40 rows, it was trained on 48\)")):
        file.write_text("a,b\n" + "".join(now))
        with pytest.raises(RunFolderError, match=rf"trained on other rows{counted}: the data has changed since"):
            audit_run(tmp_path / "run")
    # A result that was written before rows had an outline is audited as long as there are as many.
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    del result["rows_outline"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    file.write_text("a,b\n" + "".join(sorted(lines)))
    assert len(audit_run(tmp_path / "run")) == len(before)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_are_those_that_were_trained_on_where_a_machine_rounds_otherwise(tmp_path, task):
    """Faces that are drawn, or targets that follow the inputs, differ in some last digits on another processor."""
    file = tmp_path / "rows.csv"
    values = np.random.default_rng(0).normal(size=(60, 2))
    target = [f"{2 * own:.9g}" if task == "regression" else f"{own > 0:d}" for own in values[:, 0]]
    run = make_run("table", "prl-l", epochs=1, data_dir=str(file), data_options={"task": task})

    def write(values):
        lines = [f"{a:.9g},{b:.9g},{y}\n" for (a, b), y in zip(values, target, strict=True)]
        file.write_text("a,b,y\n" + "".join(lines))

    write(values)
    train(run, tmp_path / "run")
    write(values * (1 + 3e-7))
    assert len(audit_run(tmp_path / "run")) == 48
    target[3], target[4] = "1", "1"
    target[5] = "0"
    write(values)
    with pytest.raises(RunFolderError, match="trained on other rows: the data has changed since"):
        audit_run(tmp_path / "run")


def test_two_networks_answer_together(tmp_path):
    run = make_run("digits", "co-prl-l", corruption="symmetric", rate=0.2, epochs=2, device="cpu")
    train(run, tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    assert audit.seen.max() == 4  # two networks, two epochs
    assert audit.confidence.max() <= 1


def test_a_run_that_drops_nothing_and_scores_nothing_can_be_audited(tmp_path):
    """Its final network has to say it all."""
    train(make_run("digits", "standard", corruption="symmetric", rate=0.2, epochs=4, device="cpu"), tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    assert np.isfinite(audit.suspicion).all()
    assert audit.flagged.any()


def test_the_way_out_of_a_transformed_target_leads_to_an_audit():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(100, 3))
    y = np.exp(X[:, 0])
    fitted = TransformedTargetRegressor(RobustRegressor(epochs=1), func=np.log1p, inverse_func=np.expm1).fit(X, y)
    with pytest.raises(InputError, match=r"give fitted\.regressor_, with (.*) for y") as refused:
        audit_estimator(fitted, X, y)
    way = re.search("with (.*) for y", str(refused.value))[1]
    audit = audit_estimator(fitted.regressor_, X, eval(way, {"fitted": fitted, "numpy": np, "y": y}))
    assert np.allclose(audit.given[:, 0], np.log1p(y))


def test_what_cannot_be_audited_is_refused(tmp_path, digits):
    X, given, *_ = digits
    with pytest.raises(InputError, match="not fitted"):
        audit_estimator(RobustClassifier(), X, given)
    fitted = RobustClassifier(epochs=1, random_state=0).fit(X[:100], given[:100])
    for outer, way in ((GridSearchCV(fitted, {}, cv=2), "best_estimator_"), (make_pipeline(fitted), "fitted[-1]")):
        with pytest.raises(InputError, match=re.escape(way)):
            audit_estimator(outer.fit(X[:100], given[:100]), X[:100], given[:100])
    for outer in (BaggingClassifier(fitted, 2), CalibratedClassifierCV(fitted, cv=2)):
        name = type(outer).__name__
        with pytest.raises(InputError, match=f"fitted is a {name}, but only a RobustClassifier"):
            audit_estimator(outer.fit(X[:100], given[:100]), X[:100], given[:100])
    with pytest.raises(InputError, match="y has 90 rows"):
        audit_estimator(fitted, X[:90], given[:90])
    with pytest.raises(InputError, match=r"y\[3\] is .*no class"):
        audit_estimator(fitted, X[:100], np.where(np.arange(100) == 3, 77, given[:100]))
    with pytest.raises(RunFolderError, match="not a run folder"):
        audit_run(tmp_path)


def test_rows_of_weight_nothing_are_not_suspect(digits):
    X, given, *_ = digits
    weights = (np.arange(200) % 4 > 0).astype(float)
    fitted = RobustClassifier(epochs=2, random_state=0).fit(X[:200], given[:200], weights)
    audit = audit_estimator(fitted, X[:200], given[:200])
    assert (audit.suspicion[::4] == 0).all()
    assert not audit.flagged[::4].any()
    assert ((audit.seen > 0) == (weights > 0)).all()
    assert (audit.seen[weights > 0] <= 2).all()  # epochs


def test_a_class_without_weight_is_to_be_left_out_of_the_fit(digits):
    X, given, *_ = digits
    X, given = X[:200], given[:200]
    weights = (given != 3).astype(float)
    fitted = RobustClassifier(epochs=2, random_state=0).fit(X, given, weights)
    with pytest.raises(InputError, match=r"rows of this class have weight 0.* fit it without these rows"):
        audit_estimator(fitted, X, given)
    X, given = X[weights > 0], given[weights > 0]
    assert len(audit_estimator(RobustClassifier(epochs=2, random_state=0).fit(X, given), X, given)) == len(X)


def test_classes_may_be_words(digits):
    X, given, *_ = digits
    words = np.array([f"digit {label}" for label in given[:400]])
    audit = audit_estimator(RobustClassifier(epochs=10, random_state=0).fit(X[:400], words), X[:400], words)
    table = audit.table()
    assert (table["given"] == words).all()
    assert set(audit.repaired(words)) <= set(words)


def test_clean_leaves_out_what_is_flagged(digits):
    X, given, true, audit = digits
    kept, labels = audit.clean(X, given)
    assert len(kept) == len(labels) == (~audit.flagged).sum()
    assert (kept == X[~audit.flagged]).all()
    assert (labels == true[~audit.flagged]).mean() > (given == true).mean()
    assert (audit.clean(given) == labels).all()
    with pytest.raises(InputError, match="array 1 has 5 rows"):
        audit.clean(X, given[:5])
    with pytest.raises(InputError, match="no array"):
        audit.clean()


def test_repaired_changes_flagged_rows_and_no_other(digits, table):
    _, given, true, audit = digits
    before = given.copy()
    labels = audit.repaired(given)
    assert (given == before).all()
    assert labels.dtype == given.dtype
    assert (labels[~audit.flagged] == given[~audit.flagged]).all()
    assert (labels == true).mean() > 0.95
    _, given, true, audit = table
    targets = audit.repaired(given)
    assert (targets[~audit.flagged] == given[~audit.flagged]).all()
    is_off = audit.off & (audit.kind == "random")[:, None]
    assert (targets[is_off] == audit.suggested[is_off]).all()
    some_off = is_off.any(1, keepdims=True) & ~is_off  # an output that is right stays
    assert (targets[some_off] == given[some_off]).all()
    turned = audit.kind == "sign flipped"
    assert turned[:60].mean() > 0.9
    assert (np.abs(targets[turned]) == np.abs(given[turned])).all()  # the row's own numbers, and no guess
    assert np.abs(targets - true)[:60][turned[:60]].mean() < 0.1
    with pytest.raises(InputError, match="3 targets of a row were audited"):
        audit.repaired(given[:, 0])


def test_targets_in_another_order_are_not_repaired(digits, table):
    """The flags are of rows by their place: after a sort, right targets would be changed."""
    for _, given, _, audit in (digits, table):
        order = np.argsort(given if given.ndim == 1 else given[:, 0], kind="stable")
        with pytest.raises(InputError, match=r"y\[\d+\] is .* in another order"):
            audit.repaired(given[order])
        assert audit.repaired(given.astype(np.float32)).shape == given.shape
    _, given, _, audit = digits
    words = np.array([f"{'0' * (row % 2)}{label}" for row, label in enumerate(given)], dtype=object)
    assert (audit.repaired(words).astype(int) == audit.repaired(given)).all()  # in two spellings each


def test_frames_are_cleaned_as_frames(digits):
    pandas = pytest.importorskip("pandas")
    X, _, _, audit = digits
    frame = pandas.DataFrame(X, index=np.arange(len(X)) + 1000)
    kept = audit.clean(frame)
    assert kept.index.tolist() == (np.flatnonzero(~audit.flagged) + 1000).tolist()


def test_frames_are_repaired_as_frames(digits):
    pandas = pytest.importorskip("pandas")
    X, given, _, audit = digits
    y = pandas.Series(given, index=np.arange(len(X)) + 1000, name="digit")
    mended = audit.repaired(y)
    assert mended.index.equals(y.index)
    assert mended.name == "digit"
    assert mended.dtype == y.dtype
    assert (mended.to_numpy() == audit.repaired(given)).all()
    frame = audit.repaired(y.to_frame())
    assert frame.columns.tolist() == ["digit"]
    assert (frame["digit"] == mended).all()


def test_tensors_and_sparse_matrices_stay_what_they_are(digits):
    X, _, _, audit = digits
    kept = X[~audit.flagged]
    assert torch.equal(audit.clean(torch.from_numpy(X)), torch.from_numpy(kept))
    sparse = pytest.importorskip("scipy.sparse")
    assert (audit.clean(sparse.coo_array(X)).toarray() == kept).all()
    with pytest.raises(InputError, match="array 0 is 5"):
        audit.clean(5)


def test_cleanlabs_arrays_are_in_the_order_of_the_source(digits):
    *_, audit = digits
    assert (label_quality(audit) == 1 - audit.suspicion).all()
    assert (issue_mask(audit) == audit.flagged).all()
    issues = ranked_issues(audit)
    assert sorted(issues) == np.flatnonzero(audit.flagged).tolist()
    assert (np.diff(label_quality(audit)[issues]) >= 0).all()


def test_labels_with_probabilities_are_taken_as_cleanlab_takes_them():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.05, 0.95], [0.6, 0.4]])
    labels = np.array([0, 1, 0, 1])
    assert issue_mask(labels, probabilities).tolist() == [False, False, True, True]
    assert ranked_issues(labels, probabilities).tolist() == [2, 3]
    assert np.argmin(label_quality(labels, probabilities)) == 2
    for bad, message in [
        ((labels[:3], probabilities), "shape"),
        ((labels + 1, probabilities), r"labels\[1\] is 2"),
        ((labels, probabilities * 2), r"pred_probs\[0\]"),
        ((labels * 1.0, probabilities), "class numbers"),
        ((labels,), "pred_probs is missing"),
    ]:
        with pytest.raises(InputError, match=message):
            label_quality(*bad)


def test_the_same_run_gives_the_same_audit(digits):
    X, given, _, audit = digits
    fitted = RobustClassifier(drop_rate=0.2, epochs=30, random_state=0).fit(X, given)
    assert np.array_equal(audit_estimator(fitted, X, given).suspicion, audit.suspicion)


def test_rows_held_out_to_stop_early_are_judged_like_the_others():
    """By what the network says about them in the end, on the scale of the others' means."""
    X, y = load_digits(return_X_y=True)
    X, given = X[:1000], y[:1000].copy()
    random = np.random.default_rng(0)
    is_wrong = random.random(1000) < 0.2
    given[is_wrong] = (given[is_wrong] + 1) % 10
    model = RobustClassifier(epochs=30, early_stopping=True, random_state=0).fit(X, given)
    held_out, flagged = model.times_seen_ == 0, audit_estimator(model, X, given).flagged
    assert held_out.sum() == 100
    assert is_wrong[held_out & flagged].mean() > 0.8
    assert flagged[held_out & is_wrong].mean() > 0.8


def test_rows_without_weight_have_no_quality():
    X, y = load_digits(return_X_y=True)
    weights = np.ones(200)
    weights[:50] = 0
    model = RobustClassifier(epochs=2, random_state=0).fit(X[:200], y[:200], sample_weight=weights)
    found = audit_estimator(model, X[:200], y[:200])
    assert np.array_equal(np.isnan(label_quality(found)), weights == 0)
    assert not found.flagged[:50].any()
    with pytest.raises(InputError, match="rows is -1"):
        found.most_suspect(-1)


def test_a_pipeline_is_told_which_part_of_it_is_audited():
    X, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), RobustClassifier(epochs=1)).fit(X[:100], y[:100])
    with pytest.raises(InputError, match=r"give fitted\[-1\], with fitted\[:-1\].transform\(X\) for X"):
        audit_estimator(pipeline, X[:100], y[:100])
    assert len(audit_estimator(pipeline[-1], pipeline[:-1].transform(X[:100]), y[:100])) == 100


def mended_audit(given, expected, kinds, gaps=None, off=None):
    """An audit of rows that all are flagged, each with its kind."""
    given, expected = np.array(given, dtype=float), np.array(expected, dtype=float)
    found = judge(
        "regression",
        tuple(f"y{place}" for place in range(given.shape[1])),
        given,
        Answers(expected, None, np.ones(len(given), dtype=np.float32)),
        np.ones(len(given)),
        seen=np.ones(len(given), dtype=int),
        dropped=np.zeros(len(given), dtype=int),
        method="prl-l",
        run="made up",
        gaps=gaps,
    )
    flagged = np.ones(len(given), dtype=bool)
    off = np.ones(given.shape, dtype=bool) if off is None else np.array(off)
    return replace(found, flagged=flagged, kind=np.array(kinds, dtype=object), off=off)


def test_what_plainly_happened_is_undone_and_the_rest_is_rounded_as_its_column():
    given = [[-403.96], [4039.6], [0.4], [17.25], [-3.5]]
    expected = [[391.123456], [410.98765], [388.2], [446.8439737418804], [3.1]]
    audit = mended_audit(given, expected, ["sign flipped", "scaled", "scaled", "random", "swapped"])
    assert audit.repaired(np.array(given))[:, 0].tolist() == [403.96, 403.96, 400.0, 446.84, 3.1]
    whole = mended_audit([[-12], [170], [3]], [[11.2], [16.4], [8.7]], ["sign flipped", "scaled", "random"])
    mended = whole.repaired(np.array([-12, 170, 3], dtype=np.int16))
    assert mended.tolist() == [12, 17, 9]
    assert np.issubdtype(mended.dtype, np.integer)


def test_of_many_outputs_those_that_are_concerned_are_undone():
    given = [[-1.5, 2.0, 0.125], [1.5, 200.0, 3.0], [11.0, 20.0, 33.0], [2.5, 5.0, 7.5]]
    expected = [[1.4, -2.1, 0.2], [1.6, 2.1, 2.9], [1.08, 2.02, 3.31], [1.0, 2.0, 3.0]]
    off = [[True, True, False], [False, True, False], [True] * 3, [True] * 3]
    audit = mended_audit(given, expected, ["sign flipped", "scaled", "scaled", "scaled"], off=off)
    mended = audit.repaired(np.array(given))
    assert mended[0].tolist() == [1.5, -2.0, 0.125]
    assert mended[1].tolist() == [1.5, 2.0, 3.0]
    assert mended[2].tolist() == [1.1, 2.0, 3.3]
    assert mended[3].tolist() == [1.0, 2.0, 3.0]  # by 2.5, which nobody can know exactly: as expected


def test_rows_that_lack_an_input_are_undone_and_not_guessed():
    given, expected = [[-4.5], [9.0], [9.0]], [[4.1], [2.0], [2.0]]
    gaps = {"size": np.array([True, True, False])}
    audit = mended_audit(given, expected, ["sign flipped", "random", "random"], gaps)
    assert audit.repaired(np.array(given))[:, 0].tolist() == [4.5, 9.0, 2.0]
    assert audit.table()["gaps"].tolist() == ["size", "size", ""]


def test_labels_that_the_inputs_do_not_tell_are_said_to_be_so():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 2))
    for classes in (2, 8):
        y = random.integers(0, classes, 600)
        audit = audit_estimator(RobustClassifier(drop_rate="learn", epochs=50, random_state=0).fit(X, y), X, y)
        assert "The inputs hardly predict these labels" in audit.warnings[0]
        assert not any("rare" in each["warning"] for each in audit.by_class())
        assert audit.summary()["warnings"] == list(audit.warnings)
    y = (X[:, 0] > 0) ^ (random.random(600) < 0.2)
    audit = audit_estimator(RobustClassifier(drop_rate="learn", epochs=50, random_state=0).fit(X, y), X, y)
    assert audit.warnings == ()


@pytest.mark.parametrize("zeros", [0.5, 0.79, 0.9])
def test_amounts_that_are_mostly_zero_are_learnt(zeros):
    """Where nothing is wrong, a rate that is learnt does no harm."""
    random = np.random.default_rng(0)
    X, X_new = random.normal(size=(2, 1000, 3))
    middle = np.quantile(X[:, 0], zeros)

    def amount(rows):
        return np.where(rows[:, 0] < middle, 0, 100 * (rows[:, 0] - middle) + 20)

    model = RobustRegressor(drop_rate="learn", epochs=60, random_state=0).fit(X, amount(X))
    assert model.drop_rate_ < 0.11
    assert model.score(X_new, amount(X_new)) > 0.85
    assert audit_estimator(model, X, amount(X)).flagged.mean() < 0.1


def test_an_audit_of_few_rows_or_with_most_of_them_flagged_warns():
    assert "20 rows are few" in " ".join(cautions(np.zeros(20, dtype=bool), {}))
    assert not list(cautions(np.arange(200) < 100, {}))
    assert "101 of 200 rows are flagged" in " ".join(cautions(np.arange(200) < 101, {}))
    gaps = {"size": np.arange(200) % 10 == 0}
    assert not list(cautions(np.arange(200) < 20, gaps))
    assert "20 of 20 flagged rows lack an input (size)" in " ".join(cautions(gaps["size"], gaps))


@pytest.mark.parametrize("kind", [RobustClassifier, RobustRegressor])
def test_rows_in_another_order_are_not_those_of_the_fit(kind):
    X, y = (each[:200] for each in load_digits(return_X_y=True))
    weights = np.arange(200) % 5  # 0 for some
    model = kind(epochs=3, random_state=0).fit(X, y, sample_weight=weights)
    assert len(audit_estimator(model, X.astype(np.float32), y.tolist())) == 200
    for other in ((X[::-1], y[::-1]), (X, y[::-1]), (X[::-1], y)):
        with pytest.raises(InputError, match="another order"):
            audit_estimator(model, *other)
