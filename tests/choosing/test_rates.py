"""The race of drop rates with candidates whose quality is known, and the estimate of the wrong share."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradsieve import estimate_rate
from gradsieve.choosing import RATES
from gradsieve.choosing.ballot import Vote, hold_vote
from gradsieve.choosing.electorate import electorate
from gradsieve.choosing.estimate import honest_error, is_off, spread
from gradsieve.choosing.judge import Verdict
from gradsieve.choosing.outcome import candidate_to_count_by, doubt
from gradsieve.choosing.pick import RatePick, too_few
from gradsieve.choosing.rates import CENSUS, RUNGS, Together, pick_rate, race
from gradsieve.choosing.sharpen import POWER, equally_sure, raise_to
from gradsieve.errors import GradsieveError, InputError, RankError

ROWS = 600


class Runner:
    """A candidate that is the better the nearer its rate is to the best one, and says what it did."""

    def __init__(self, rate, best, truth, diverges=False):
        self.rate, self.truth, self.diverges, self.trained = rate, truth, diverges, []
        self.noise = np.random.default_rng(0).normal(size=truth.shape) * (0.05 + 3 * abs(rate - best))

    def train(self, share):
        self.trained.append(share)
        if self.diverges:
            raise GradsieveError("diverged")

    def predict(self):
        return self.truth + self.noise


def race_at(best, share=0.0, diverging=()):
    random = np.random.default_rng(1)
    truth = random.normal(size=(ROWS, 1))
    given = np.where(np.arange(ROWS)[:, None] < share * ROWS, random.uniform(-5, 5, size=truth.shape), truth)
    runners = {}

    def start(rate):
        runners[rate] = Runner(rate, best, truth, rate in diverging)
        return runners[rate]

    return pick_rate(start, given), runners


@pytest.mark.parametrize("best", RATES)
def test_the_best_rate_wins_and_the_others_stop_on_the_way(best):
    pick, runners = race_at(best, share=0.2)
    assert pick.winner == pick.rate == best  # a larger rate that is clearly worse is no place for an estimate to go to
    assert pick.choice is not None
    assert pick.choice.name == best
    lengths = sorted(len(runner.trained) for runner in runners.values())
    assert lengths == [1, 1, 1, 2, 3, 3]
    assert runners[best].trained == [share for share, _ in RUNGS]
    assert all(abs(rate - best) < 0.25 for rate, runner in runners.items() if len(runner.trained) > 1)  # neighbours
    assert pick.margins[RATES.index(best)] == 0
    assert max(pick.margins) == 0


class Slow(Runner):
    """Half trained, small rates are ahead; in the end the best one is."""

    def __init__(self, rate, best, truth, diverges=False):
        super().__init__(rate, 0.0, truth)
        self.then, self.fails = Runner(rate, best, truth).noise, diverges

    def train(self, share):
        if share == 1.0:
            self.noise, self.diverges = self.then, self.fails
        super().train(share)


@pytest.mark.parametrize(
    ("is_thorough", "diverging", "winner"),
    [(False, (), 0.1), (True, (), 0.3), (True, (0.2,), 0.1), (True, (0.4,), 0.3)],
)
def test_a_winner_has_won_against_both_of_its_neighbours(is_thorough, diverging, winner):
    """Of a small set: what led early leads one step further, and so on; one that diverges then has lost."""
    truth = np.random.default_rng(1).normal(size=(ROWS, 1))
    given = np.where(np.arange(ROWS)[:, None] < 0.2 * ROWS, 5.0, truth)
    runners = {rate: Slow(rate, 0.3, truth, rate in diverging) for rate in RATES}
    pick = pick_rate(runners.get, given, is_thorough=is_thorough)
    assert pick.winner == winner
    finished = {rate for rate, runner in runners.items() if 1.0 in runner.trained}
    assert finished == {rate for rate in RATES if rate < (winner + 0.15 if is_thorough else 0.15)}
    assert all(runner.trained.count(1.0) <= 1 for runner in runners.values())


@pytest.mark.parametrize(("share", "winner"), [(0.45, 0), (0.52, 0), (0.6, 0.1)])
def test_in_the_end_rate_0_is_left_for_the_next_one_only_if_that_is_clearly_ahead(share, winner):
    """In 600 rows two standard errors are a lead of 4 rows in 100 over the half."""
    truth = np.random.default_rng(0).normal(size=(ROWS, 1))
    is_for_next = np.arange(ROWS)[:, None] < share * ROWS
    says = {0.0: np.where(is_for_next, 0.2, 0.18), 0.1: np.where(is_for_next, -0.18, -0.2)}

    def start(rate):
        runner = Runner(rate, rate, truth)
        runner.noise = says.get(rate, 3.0)
        return runner

    assert pick_rate(start, truth).winner == winner


def test_where_rows_cannot_tell_whether_to_drop_it_is_said():
    """Two halves of equal size, each with a network of its own: nothing is dropped, and a warning says why."""
    truth = np.random.default_rng(0).normal(size=(ROWS, 1))
    given = np.where(np.arange(ROWS)[:, None] % 2, truth, -truth)

    def start(rate):
        runner = Runner(rate, rate, truth)
        runner.truth = truth * (0 if rate == 0 else 1 if rate < 0.35 else -1)
        return runner

    pick = pick_rate(start, given)
    assert pick.winner == pick.rate == 0
    assert "cannot tell the drop rates 0 and" in pick.warning


def test_equal_candidates_leave_all_rows_in():
    pick = pick_rate(lambda rate: Runner(0, 0, np.zeros((ROWS, 1))), np.ones((ROWS, 1)))
    assert pick.rate == 0


@pytest.mark.parametrize("diverging", [(0.0,), (0.0, 0.1, 0.2, 0.3, 0.4)])
def test_a_candidate_that_diverges_has_lost(diverging):
    pick, _ = race_at(0.0, diverging=diverging)
    assert pick.winner not in diverging
    assert pick.margins[0] == -1


def test_predictions_that_are_not_finite_are_a_defeat():
    """A loop of one's own may not notice that it has diverged."""
    truth = np.random.default_rng(1).normal(size=(ROWS, 1))
    runners = {rate: Runner(rate, 0.3, truth) for rate in RATES}
    runners[0.0].noise = runners[0.5].noise = np.full_like(truth, np.nan)
    assert pick_rate(runners.get, np.where(np.arange(ROWS)[:, None] < 0.2 * ROWS, 5.0, truth)).winner == 0.3
    for runner in runners.values():
        runner.noise = np.full_like(truth, np.nan)
    with pytest.raises(GradsieveError, match="not finite"):
        pick_rate(runners.get, truth)


class Overtaken(Runner):
    """Rates that drop rows are a little ahead of rate 0 until the end, when that is exact."""

    def __init__(self, rate, truth, lead):
        super().__init__(rate, rate, truth)
        self.noise = self.noise + lead * (rate == 0) * np.random.default_rng(2).normal(size=truth.shape)

    def train(self, share):
        super().train(share)
        if share == 1.0:
            self.noise = 0 * self.noise if self.rate == 0 else self.noise + 0.2


@pytest.mark.parametrize(
    ("lead", "is_thorough", "stays"), [(0.008, True, True), (0.008, False, False), (1, True, False)]
)
def test_rate_0_stays_until_it_is_clearly_behind(lead, is_thorough, stays):
    truth = np.random.default_rng(1).normal(size=(ROWS, 1))
    runners = {rate: Overtaken(rate, truth, lead) for rate in RATES}
    runners[0.1].noise = runners[0.1].noise + 0.2  # what wins the first vote is no neighbour of rate 0
    pick = pick_rate(runners.get, truth, is_thorough=is_thorough)
    assert (1.0 in runners[0.0].trained, pick.rate == 0) == (stays, stays)


def test_a_wrong_input_is_no_defeat():
    """Of a loop that is not ours, say: it is told, and does not decide a race."""

    class Refusing(Runner):
        def train(self, share):
            if self.rate == 0.4:
                raise InputError("the loop refuses")

    truth = np.random.default_rng(1).normal(size=(ROWS, 1))
    with pytest.raises(InputError, match="the loop refuses"):
        pick_rate(lambda rate: Refusing(rate, 0.0, truth), truth)


def test_where_all_diverge_the_error_is_theirs():
    with pytest.raises(GradsieveError, match="diverged"):
        race_at(0.0, diverging=RATES)


def test_a_pick_survives_its_file():
    pick, _ = race_at(0.3, share=0.2)
    again = RatePick.from_json(json.loads(json.dumps(pick.to_json())))
    assert again.to_json() == pick.to_json()
    assert again.winner == 0.3
    with pytest.raises(InputError):
        RatePick.from_json({**pick.to_json(), "rate": 2})


@pytest.mark.parametrize("rows", [200, 1437, 2500, 4000, 5001, 10_000, 100_000])
def test_nobody_votes_on_a_network_that_was_trained_on_it(rows):
    parts = electorate(rows, seed=0).parts
    for trained, voters, spare in parts:
        assert sorted(torch.cat([trained, voters, spare]).tolist()) == list(range(rows))
        assert not set(trained.tolist()) & set(voters.tolist())
        assert len(voters) >= len(trained) // 4
    everybody = torch.cat([part.voters for part in parts])
    assert len(everybody.unique()) == len(everybody)
    assert len(parts) == max(1, min(5, 10_000 // rows))
    assert len(parts) == 1 or len(everybody) > 0.85 * rows
    # Races of 3.5 candidates, in runs of all rows.
    cost = 3.5 * sum(len(part.trained) for part in parts) / rows
    assert cost <= {200: 14.1, 1437: 14.1, 2500: 10.1, 4000: 4, 5001: 1.8, 10_000: 1.3, 100_000: 0.4}[rows]
    assert (parts[0].trained == electorate(rows, seed=0).parts[0].trained).all()


def test_networks_of_a_candidate_are_asked_one_after_another():
    """Each about its own rows: the same as one network that is asked about all of them."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(ROWS, 1))
    given = np.where(random.random((ROWS, 1)) < 0.3, truth + 5, truth)
    halves = truth[: ROWS // 2], truth[ROWS // 2 :]

    def pick(start):
        return pick_rate(start, given).to_json()

    alone = pick(lambda rate: Shifted(rate, truth))
    assert pick(lambda rate: Together([Shifted(rate, half) for half in halves])) == alone
    assert alone["winner"] == 0.3


class Shifted:
    """A candidate that is the farther off, the farther its rate is from 0.3; at no time before it is trained."""

    def __init__(self, rate, truth):
        self.says, self.share = truth + 2 * abs(rate - 0.3), 0.0

    def train(self, share):
        assert share > self.share
        self.share = share

    def predict(self):
        return self.says


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.45])
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_the_estimate_counts_far_targets(share, outputs):
    random = np.random.default_rng(0)
    truth = random.normal(size=(4000, outputs))
    is_wrong = random.random(4000) < share
    given = truth + 0.1 * random.normal(size=truth.shape)
    given[is_wrong] = random.uniform(-5, 5, size=(is_wrong.sum(), outputs))
    moved = (np.sqrt(((given - truth) ** 2).sum(1)) > 3 * 0.1 * np.sqrt(outputs)).mean()
    assert estimate_rate(truth, given) == pytest.approx(moved, abs=0.03)


def test_wrong_rows_among_the_honest_ones_make_these_no_wider():
    """Honest residuals are wide, and many wrong targets lie among them: the nearest quarter is not honest alone."""
    random = np.random.default_rng(0)
    truth, given = random.normal(size=(2, 4000, 1))
    given = truth + 0.35 * given
    is_wrong = random.random(4000) < 0.45
    given[is_wrong] = random.uniform(-5, 5, (is_wrong.sum(), 1))
    assert honest_error(truth, given) == pytest.approx(0.35, rel=0.1)
    assert honest_error(truth[~is_wrong], given[~is_wrong]) == pytest.approx(0.35, rel=0.05)


def test_rows_of_chance_alone_have_a_width():
    """Nothing is honest, so nothing tells wrong rows apart: they count as they lie."""
    residual = np.linspace(0, 1, 1000)
    assert 0.25 < spread(residual, 1) < 1
    assert spread(np.zeros(1000), 1) == 0


def test_of_many_outputs_smaller_mistakes_are_seen():
    """Ten outputs off by 0.6 each, where honest ones are by 0.1: no single one is far, all together are."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(3000, 10))
    is_wrong = random.random(3000) < 0.3
    given = truth + 0.1 * random.normal(size=truth.shape) + 0.6 * is_wrong[:, None]
    assert estimate_rate(truth, given) == pytest.approx(0.3, abs=0.03)


def test_what_lies_near_counts_as_right_however_near_the_others_are():
    """A fit that meets most targets to the thousandth, and a fifth of them to the tenth of their spread."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(3000, 1))
    met = truth + np.where(random.random((3000, 1)) < 0.2, 0.1, 0.001) * random.normal(size=truth.shape)
    assert estimate_rate(met, truth) < 0.005
    given = np.where(random.random((3000, 1)) < 0.3, truth + 2, truth)
    assert estimate_rate(met, given) == pytest.approx(0.3, abs=0.03)


def test_a_mistake_of_a_quarter_of_the_spread_is_seen_where_others_are_met_closely():
    random = np.random.default_rng(0)
    truth = random.normal(size=(3000, 1))
    is_wrong = random.random(3000) < 0.2
    given = truth + 0.01 * random.normal(size=truth.shape) + 0.25 * 1.35 * is_wrong[:, None]
    assert estimate_rate(truth, given) == pytest.approx(is_wrong.mean(), abs=0.01)


def test_long_tails_of_honest_residuals_are_no_mistakes():
    """Residuals of five degrees of freedom: by three root mean squares, 2.6 % of the rows would be wrong."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(8000, 1))
    assert estimate_rate(truth, truth + 0.4 * random.standard_t(5, size=truth.shape)) < 0.02


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_residuals_that_are_larger_in_one_place_than_in_another_are_no_mistakes(share):
    """A fifth of the amounts is known eight times less well: by one limit for all, half of them look wrong."""
    random = np.random.default_rng(0)
    truth = random.uniform(0, 10, size=(4000, 1))
    given = truth + np.where(truth > 8, 2.4, 0.3) * random.normal(size=truth.shape)
    is_wrong = random.random((4000, 1)) < share
    given = np.where(is_wrong, given + 30, given)
    assert is_off(truth, given)[~is_wrong[:, 0]].mean() > 0.1
    assert estimate_rate(truth, given) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(("behind", "rate"), [(0, 0.2), (0.3, 0.1)])
def test_of_amounts_the_estimate_goes_as_far_as_to_the_next_rate_if_that_is_about_as_good(behind, rate):
    """The winner drops a tenth, and finds that four tenths are off."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(3000, 1))
    given = np.where(random.random((3000, 1)) < 0.4, truth + 2, truth)

    def start(rate):
        runner = Runner(0.1, 0.1, truth)
        runner.noise = runner.noise / 0.05 * {0.1: 0.1, 0.2: 0.1 + behind}.get(rate, 1.0)
        return runner

    pick = pick_rate(start, given)
    assert pick.winner == 0.1
    assert pick.estimate == pytest.approx(0.4, abs=0.03)
    assert pick.rate == rate


def test_the_estimate_is_made_of_the_larger_rate_where_that_lies_nearer_to_honest_rows():
    """The winner is halfway to what the wrong rows say, and the larger one is not."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(3000, 1))
    given = np.where(random.random((3000, 1)) < 0.4, -truth, truth) + 0.05 * random.normal(size=truth.shape)
    says = {0.3: 0.5 * truth, 0.4: truth}
    vote = Vote(
        1.0, [0.3, 0.4], np.stack(list(says.values())), None, given, np.ones(3000), Verdict(0, None, (0, 1)), True
    )
    assert candidate_to_count_by(vote, 0) == candidate_to_count_by(vote, 1) == 1
    moved = (np.abs(given - truth) > 3 * 0.05).mean()
    assert estimate_rate(says[0.3], given) < moved - 0.2
    assert estimate_rate(says[0.4], given) == pytest.approx(moved, abs=0.05)
    closely = vote._replace(answers=np.stack([truth + 0.01, truth]))
    assert candidate_to_count_by(closely, 0) == 0


@pytest.mark.parametrize("share", [0.0, 0.2, 0.45])
def test_the_estimate_counts_contradicted_labels(share):
    random = np.random.default_rng(0)
    labels = random.integers(10, size=3000)
    sure = random.random(3000) < 0.9  # of the others the model has no idea
    probabilities = np.where(sure[:, None], 0.91 * np.eye(10)[labels] + 0.009, 0.1)
    given = np.where(random.random(3000) < share, (labels + 1) % 10, labels)
    assert estimate_rate(probabilities, given) == pytest.approx(share, abs=0.03)


def test_rows_of_which_a_model_is_not_sure_hardly_count():
    """A quarter of the rows is guessed at with a lead of 0.3: a plain count would call most of their labels wrong."""
    random = np.random.default_rng(0)
    labels = random.integers(10, size=4000)
    guessed = random.random(4000) < 0.25
    favourite = np.where(guessed, random.integers(10, size=4000), labels)
    lead = np.where(guessed, 0.3, 0.9)[:, None]
    probabilities = lead * np.eye(10)[favourite] + (1 - lead) / 10
    given = np.where(random.random(4000) < 0.2, (labels + 1) % 10, labels)
    assert (favourite != given).mean() > 0.35
    assert estimate_rate(probabilities, given) == pytest.approx(0.2, abs=0.03)


class Classifier:
    """A candidate that is wrong about a share of the rows of its own, and says so with some confidence."""

    def __init__(self, labels, wrong, confidence=0.9, seed=0):
        random = np.random.default_rng(seed)
        favourite = np.where(random.random(len(labels)) < wrong, random.integers(10, size=len(labels)), labels)
        self.says = np.where(np.eye(10)[favourite] > 0, confidence, (1 - confidence) / 9)

    def train(self, share):
        pass

    def predict(self):
        return self.says


def test_where_nothing_is_dropped_the_estimate_is_that_of_the_network_that_contradicts_fewest_labels():
    labels = np.random.default_rng(1).integers(10, size=2000)
    given = np.where(np.random.default_rng(2).random(2000) < 0.3, (labels + 1) % 10, labels)
    answers = np.stack([Classifier(labels, wrong, seed=3).says for wrong in (0.2, 0.0)])
    vote = Vote(1.0, [0.0, 0.1], answers, None, given, np.ones(2000), Verdict(0, None, (0, 1)), True)
    assert estimate_rate(answers[0], given) > 0.4
    assert candidate_to_count_by(vote, 0) == 1
    assert estimate_rate(answers[1], given) == pytest.approx(0.3, abs=0.03)
    turned = vote._replace(answers=answers[::-1])
    assert candidate_to_count_by(turned, 1) == 1  # who drops speaks for itself


class Late(Classifier):
    """The larger its rate, the surer it is at the first vote, and the more often wrong in the end."""

    def __init__(self, labels, rate):
        super().__init__(labels, 0.3, 0.3 + rate)
        self.then = Classifier(labels, 0.02 + rate / 4).says

    def train(self, share):
        self.says = self.says if share == RUNGS[0][0] else self.then


@pytest.mark.parametrize("stays", [False, True])
def test_rate_0_is_there_at_the_end_to_tell_that_dropping_did_no_good(stays):
    labels = np.random.default_rng(1).integers(10, size=2000)
    pick = pick_rate(lambda rate: Late(labels, rate), labels, is_thorough=stays)
    assert (pick.rate == 0) == stays


def race_of_classes(wrong_at, confidence_at=lambda rate: 0.9):
    random = np.random.default_rng(1)
    labels = random.integers(10, size=2000)
    given = np.where(random.random(2000) < 0.27, (labels + 1) % 10, labels)
    return pick_rate(lambda rate: Classifier(labels, wrong_at(rate), confidence_at(rate)), given)


def test_the_surer_classifier_is_not_the_better_one():
    """The rate 0.5 is always sure, and wrong more often; by the mean probability alone it would win."""
    pick = race_of_classes(lambda rate: 0.02 + 0.2 * rate, lambda rate: 0.75 + 0.4 * rate)
    assert pick.winner == pick.rate == 0


def test_the_estimate_moves_between_rates_that_are_about_as_good():
    close = race_of_classes(lambda rate: 0.02 if rate in (0.2, 0.3) else 0.4)
    assert close.winner == 0.2
    assert close.rate == round(close.estimate, 2) > 0.2
    assert close.estimate == pytest.approx(0.27, abs=0.03)


def test_and_not_to_rates_that_cost_more_than_the_wrong_labels():
    costly = race_of_classes(lambda rate: 0.02 if rate == 0.1 else 0.4)
    assert costly.winner == costly.rate == 0.1
    assert costly.estimate == pytest.approx(0.27, abs=0.03)


class Census(Classifier):
    def __init__(self, labels, wrong=0.05, diverges=False):
        super().__init__(labels, wrong)
        self.diverges = diverges

    def train(self, share):
        assert share == CENSUS
        if self.diverges:
            raise GradsieveError("diverged")


def test_a_census_of_all_rows_says_how_many_are_wrong():
    """Candidates that are bad at it hold half of the labels for wrong, and find that dropping more costs too much."""
    random = np.random.default_rng(1)
    labels = random.integers(10, size=2000)
    given = np.where(random.random(2000) < 0.27, (labels + 1) % 10, labels)

    def pick(census=None):
        return pick_rate(lambda rate: Classifier(labels, 0.3 if rate == 0.1 else 0.5), given, census=census)

    alone, counted = pick(), pick(lambda: Census(labels))
    assert alone.winner == counted.winner == alone.rate == 0.1
    assert alone.estimate > 0.4
    assert counted.estimate == pytest.approx(0.3, abs=0.03)
    assert counted.rate == round(counted.estimate, 2)
    assert counted.interval[0] < counted.estimate < counted.interval[1] < 0.35
    assert pick(lambda: Census(labels, diverges=True)).to_json() == alone.to_json()
    assert pick(lambda: Census(labels, wrong=0.6)).to_json() == alone.to_json()  # it knows less than they do


@pytest.mark.parametrize(
    ("at_next", "wrong", "drops"),
    [(0.1, 0.27, True), (0.1, 0.1, False), (0.4, 0.27, False)],
    ids=["many are wrong", "few are wrong", "dropping does harm"],
)
def test_where_candidates_are_even_the_census_decides(at_next, wrong, drops):
    random = np.random.default_rng(1)
    labels = random.integers(10, size=2000)
    given = np.where(random.random(2000) < wrong, (labels + 1) % 10, labels)

    def start(rate):  # 0 and 0.1 are as often wrong, about different rows
        return Classifier(labels, {0.0: 0.1, 0.1: at_next}.get(rate, 0.5), seed=round(10 * rate))

    pick = pick_rate(start, given, census=lambda: Census(labels))
    assert pick.winner == 0
    assert pick.rate == (round(pick.estimate, 2) if drops else 0)
    assert (pick.warning == "") or not drops


@pytest.mark.parametrize(("rows", "is_counted"), [(5000, False), (5001, True)])
def test_a_census_is_taken_of_many_rows_and_not_of_amounts(rows, is_counted):
    labels = np.random.default_rng(0).integers(10, size=rows)
    for targets in (labels, labels[:, None].astype(float)):
        begun = []

        def start(rate, part, targets=targets, begun=begun):
            begun.append((rate, part))
            given = targets[part.voters.numpy()]
            return Classifier(given, 0.0) if given.ndim == 1 else Shifted(rate, given)

        electors = electorate(rows, seed=0)
        race(start, electors, targets)
        after = [each for each in begun[6 * len(electors.parts) :] if len(each[1].trained) < rows]  # not the rehearsal
        assert len(after) == (is_counted and targets.ndim == 1)
        for rate, part in after:
            assert rate == 0
            assert sorted(torch.cat([part.trained, part.voters]).tolist()) == list(range(rows))


def rehearsed(fit, rows=3000, of_parts=lambda number: 1.0, is_kept=False, best=0.3):
    """A race that ``best`` wins, with the answers of a fit to all rows multiplied by ``fit``; and such fits' rates.

    ``of_parts``: by what those of each part's networks are multiplied. ``is_kept``: the caller makes the fit, to keep.
    """
    random = np.random.default_rng(0)
    truth = random.normal(size=(rows, 1))
    given = np.where(random.random((rows, 1)) < best, 5.0, truth)
    electors, tried = electorate(rows, seed=0), []

    def start(rate, part):
        is_whole = part.trained is electors.rows
        number = None if is_whole else next(n for n, each in enumerate(electors.parts) if each is part)
        if is_whole:
            tried.append(rate)
        runner = Runner(rate, best, truth[part.voters.numpy()], diverges=is_whole and fit is None)
        factor = fit if number is None else of_parts(number)
        runner.predict = lambda: (factor * (runner.truth + runner.noise))[:, 0]  # of one amount, one number a row
        return runner

    kept = {"fit": lambda rate: start(rate, electors.whole)} if is_kept else {}
    return race(start, electors, given, **kept), tried


@pytest.mark.parametrize(
    ("fit", "is_made"),
    [(1.0, True), (0.8, True), (-1.0, False), (None, False), (float("nan"), False)],  # None: it diverges
)
def test_a_fit_that_goes_another_way_than_what_was_chosen_is_not_made(fit, is_made):
    """Where nearly half of the amounts are wrong, a network may learn either half."""
    pick, tried = rehearsed(fit)
    assert (pick.winner, pick.rate, tried) == (0.3, 0.3 if is_made else 0, [0.3])
    assert ("drop rate 0.3, networks that see different rows contradict" in pick.warning) != is_made


@pytest.mark.parametrize("fit", [1.0, -1.0])
def test_most_networks_of_the_winner_say_where_a_fit_should_go(fit):
    """One of three has gone the other way: it is no reason to doubt a fit, nor to believe it."""
    pick, (tried,) = rehearsed(fit, of_parts=lambda number: -1.0 if number == 1 else 1.0)
    assert pick.rate == (tried if fit > 0 else 0)


@pytest.mark.parametrize(("best", "is_kept", "is_asked"), [(0.2, False, False), (0.2, True, True), (0.3, False, True)])
@pytest.mark.parametrize("fit", [1.0, -1.0])
def test_of_many_rows_the_fit_is_asked_if_it_is_kept_or_if_nearly_half_would_be_dropped(best, is_kept, is_asked, fit):
    """Otherwise a rehearsal costs a fit, for what hardly ever happens."""
    pick, tried = rehearsed(fit, rows=5001, is_kept=is_kept, best=best)
    assert pick.winner == best
    assert (len(tried) == 1) == is_asked
    assert (pick.rate == 0) == (is_asked and fit < 0)


def test_an_exact_fit_has_no_suspects():
    assert estimate_rate(np.arange(50.0), np.arange(50.0)) == 0


def test_a_pick_warns_of_a_wrong_majority_and_of_too_few_rows():
    random = np.random.default_rng(0)
    truth = np.zeros((ROWS, 1))
    given = np.where(random.random((ROWS, 1)) < 0.6, random.uniform(50, 99, (ROWS, 1)), random.normal(size=(ROWS, 1)))
    assert "seem wrong" in pick_rate(lambda rate: Runner(rate, 0.5, truth), given).warning
    assert "150 rows are too few" in too_few(150).warning


def ballots(given, *answers, share=1.0, before=()):
    """A vote between rates 0, 0.1, ... that say this."""
    said = dict(zip(RATES, answers, strict=False))
    return hold_vote(share, said, given, None, 0.0, list(before))


def test_probabilities_are_squared_in_the_first_vote_and_equally_sure_in_those_after_it():
    labels = np.random.default_rng(0).integers(3, size=400)
    sure, unsure = (Classifier(labels, 0.2, confidence).predict() for confidence in (0.9, 0.5))
    first = ballots(labels, sure, unsure)
    assert np.allclose(first.judged, [raise_to(each, POWER) for each in (sure, unsure)])
    second = ballots(labels, sure, unsure, before=[first])
    assert np.allclose(second.judged, equally_sure(np.stack([sure, unsure]), np.ones(400)))
    assert not np.allclose(first.judged, second.judged)


def test_only_in_the_end_must_the_next_rate_be_clearly_ahead_of_rate_0():
    """Here by between half a standard error and two."""
    random = np.random.default_rng(3)
    truth = random.normal(size=(400, 1))
    plain, next_one = truth + 0.1 * random.normal(size=truth.shape), truth + 0.0925 * random.normal(size=truth.shape)
    early, late = (ballots(truth, plain, next_one, share=share) for share in (0.6, 1.0))
    lead = early.verdict.result.margins[1, 0] / early.verdict.result.errors[1, 0]
    assert 0.5 < lead < 2
    assert (early.verdict.best, late.verdict.best) == (1, 0)


def test_a_majority_once_in_doubt_stays_so():
    random = np.random.default_rng(0)
    truth = random.normal(size=(400, 1))
    given = np.where(np.arange(400)[:, None] < 0.5 * 400, truth + 3, truth)
    doubtful = ballots(given, truth, truth + 0.01)
    clear = ballots(truth, truth, truth + 0.01)
    assert (doubtful.has_majority, clear.has_majority) == (False, True)
    assert not ballots(truth, truth, truth + 0.01, before=[doubtful]).has_majority


@pytest.mark.parametrize(("estimate", "is_told"), [(0.05, False), (0.3, True)])
def test_many_wrong_targets_of_which_none_is_dropped_are_told(estimate, is_told):
    truth = np.random.default_rng(0).normal(size=(400, 1))
    pick = RatePick(0.0, estimate, (estimate, estimate), winner=0.0, rates=RATES)
    assert ("no drop rate is better than 0" in doubt(pick, [ballots(truth, truth, truth + 1)])) == is_told


@pytest.mark.parametrize(("says", "is_told"), [(0.7, False), (-1.0, True)])
def test_networks_that_contradict_the_one_that_drops_none_are_told(says, is_told):
    truth = np.random.default_rng(0).normal(size=(400, 1))
    pick = RatePick(0.0, 0.05, (0.05, 0.05), winner=0.0, rates=RATES)
    votes = [ballots(truth, truth, says * truth), ballots(truth, truth, truth)]
    assert ("drops 10% of the rows contradicts one" in doubt(pick, votes)) == is_told
    assert not doubt(replace(pick, rate=0.1, winner=0.1), votes)
    larger = [each._replace(names=[0.0, 0.3]) for each in votes]  # what drops so many may say what it likes
    assert not doubt(pick, larger)


@pytest.mark.parametrize("rows", [5_001, 6_000, 20_000, 200_000])
def test_no_more_rows_vote_than_a_network_has_learnt_from(rows):
    (part,) = electorate(rows, seed=0).parts
    assert len(part.voters) <= len(part.trained)


def test_what_is_no_defeat_is_not_taken_for_one():
    """A rank that is lost, or a loop that breaks its word, ends the race."""

    class Lost(Runner):
        def train(self, share):
            raise self.diverges

    truth = np.zeros((ROWS, 1))
    for error in (RankError("a rank is gone"), InputError("no function")):
        with pytest.raises(type(error), match=str(error)):
            pick_rate(lambda rate, error=error: Lost(rate, 0.0, truth, error), truth)


def test_rows_of_which_a_network_is_sure_say_far_more_about_labels():
    sure, unsure = [0.9, 0.1], [0.6, 0.4]
    found = estimate_rate([sure, unsure, unsure], [1, 0, 0])
    assert found == pytest.approx(0.8**6 / (0.8**6 + 2 * 0.2**6))
