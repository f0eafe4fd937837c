"""How an error says where settings of ranks differ."""

from gradsieve.ranks.together import differences


def test_differences_name_what_differs_and_no_more():
    theirs = {"seed": 0, "plan": {"epochs": 2, "rate": 0.1}, "options": {"hidden": [8]}, "old": 1}
    ours = {"seed": 0, "plan": {"epochs": 3, "rate": 0.1}, "options": {}, "new": 2}
    assert differences(theirs, ours).split("; ") == [
        "epochs is 2 there, 3 here",
        "options is {'hidden': [8]} there, {} here",  # an option without its name would say little
        "new is None there, 2 here",
        "old is 1 there, None here",
    ]
    assert differences(ours, ours) == ""
