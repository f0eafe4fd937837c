"""An audit of real digits and of a table: it finds the wrong rows, suggests the right ones, and cleans the data."""

import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gradsieve import RobustClassifier, RobustRegressor, make_run, train
from gradsieve.audit import audit_estimator, audit_run, issue_mask, label_quality, ranked_issues
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
    assert "too short" in short.rate_source
    assert short.rate < 0.15
    assert "too short" not in longer.rate_source
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


def test_what_cannot_be_audited_is_refused(tmp_path, digits):
    X, given, *_ = digits
    with pytest.raises(InputError, match="not fitted"):
        audit_estimator(RobustClassifier(), X, given)
    fitted = RobustClassifier(epochs=1, random_state=0).fit(X[:100], given[:100])
    for outer, way in ((GridSearchCV(fitted, {}, cv=2), "best_estimator_"), (make_pipeline(fitted), "fitted[-1]")):
        with pytest.raises(InputError, match=re.escape(way)):
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
    is_off = audit.off & audit.flagged[:, None]
    assert (targets[is_off] == audit.suggested[is_off]).all()
    some_off = is_off.any(1, keepdims=True) & ~is_off  # an output that is right stays
    assert (targets[some_off] == given[some_off]).all()
    with pytest.raises(InputError, match="3 targets of a row were audited"):
        audit.repaired(given[:, 0])


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
