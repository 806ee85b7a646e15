from retrievalkit import testing


def test_the_pooler_keeps_the_contract():
    testing.check_pooler("my_name")
