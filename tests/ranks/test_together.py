"""What several ranks agree on, and how it is told where they do not."""

from gradsieve.ranks.together import differences


def test_differences_name_what_differs_and_no_more():
    theirs = {"seed": 0, "plan": {"epochs": 2, "rate": 0.1}, "old": 1}
    ours = {"seed": 0, "plan": {"epochs": 3, "rate": 0.1}, "new": 2}
    found = differences(theirs, ours).split("; ")
    assert found == ["epochs is 2 there, 3 here", "new is None there, 2 here", "old is 1 there, None here"]
    assert differences(ours, ours) == ""
