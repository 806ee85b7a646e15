from retrievalkit import testing


def test_the_indexer_keeps_the_contract():
    testing.check_indexer("my_name")
